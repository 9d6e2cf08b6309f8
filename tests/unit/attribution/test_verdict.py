"""What of a log may be shown: no control characters, no secrets, not too much."""

from __future__ import annotations

import pytest

from nvrx_core.attribution.verdict import Action, Evidence, Verdict, shown, without_escapes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x9b2Jafter", "after"),
        ("a\x07b\x00c\x85d", "a?b?c?d"),
        ("a\u202eb\u2066c", "a?b?c"),
        ("tab\there", "tab here"),
        ("größer 🏖", "größer 🏖"),
    ],
)
def test_no_control_character_is_shown(text: str, expected: str) -> None:
    assert shown(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "VAULT_SECRET_ID=hunter22", '"secret_id": "hunter22"', "token => hunter22", "TOKEN_1=hunter22",
        "token1=hunter22",
        "HF_TOKEN_READ=hunter22", "API_TOKEN_V2=hunter22", "access_token_prod=hunter22", "token_value=hunter22",
        "auth_token_value: hunter22", '"tokenValue": "hunter22"', '"token": ["a", "hunter22"]', "token=[hunter22]",
        "token=<hunter22>", "SECRET_URL=hunter22", "password_url=hunter22", "ssh://hunter22@h",
        "https://" + 40 * "hunter22" + "@h", "password is 'hunter'", "the token is hunter22",
        "password=hunter22secret", "--api-key=hunter22secret", '"token": "hunter22secret"',
        "Authorization: Bearer hunter22secret", "bearer hunter22secret", "https://me:hunter22secret@host/x",
        "hf_hunter22secrethunter22secret", "sk-hunter22secrethunter", "AKIAIOSFODNN7EXAMPLE",
        "ghp_hunter22secrethunter22secret", "nvapi-hunter22secrethunter", "pypi-hunter22secrethunter",
        "dckr_pat_hunter22secrethunter", "-----BEGIN RSA PRIVATE KEY----- hunter22secret",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\\nhunter22secret", "wandb: 0123456789abcdef0123456789abcdef01234567",
        "AWS_SECRET_ACCESS_KEY=hunter22secret", "SECRET_KEY=hunter22", "AWS_SECRET_KEY: hunter22/K7MDENG",
        "PRIVATE_KEY=hunter22", "encryption_key=hunter22", "OPENAI_KEY=hunter22", "joe / pwd=hunter22",
        "AccountKey=hunter22/uSRZ6IFsuFq2UVErCz4I6tq+K1SZ==;EndpointSuffix=x", "client_secret_value=hunter22",
        "https://a.blob.core.windows.net/c?sv=2020&sig=hunter22%2Bdef", "https://s3/x?X-Amz-Signature=hunter22&a=1",
        "https://s3/x?X-Amz-Credential=hunter22%2F2026", "mysql --password hunter22 --user x", "--hf_token hunter22",
        "t.py --db-password 'a hunter22 b'", "Command '['t.py', '--api-key', 'hunter22', '--lr', '1']'",
        "Authorization: Token hunter22", "curl -H 'Authorization: ApiKey hunter22' https://host",
        "('authorization', 'Token hunter22')", "Cookie: a=b; c=hunter22", "Set-Cookie: c=hunter22; d=hunter22",
        "{'password': 'correct horse hunter22', 'lr': 1}", r'password="with \" hunter22"',
        "Namespace(password=b'a hunter22')", "password='hunter22 without an end",
        r'{\"api_key\": \"a hunter22\", \"lr\": 1}', "https://hunter22@github.com/a/b", "https://me:pa/hunter22@host/x",
        "https://hunter22:x-oauth-basic@github.com/a", "redis://:hunter22@host:6379/0",
        "MIIEpAIBAAKCAQEA0Z3VS5JJcds3xfnIOSFODNN7yGwyF8PbnGy0AHB7MhgwMbRvI0MBZhpI",
        "smtp://a:587 user=joe pass=hunter22",
        "DB_PASS=hunter22", "PGPASSWORD=hunter22", "the password is hunter22, as before", "password was: hunter22",
        "mount.cifs user=joe,passwd: hunter22", "mirror --pass hunter22 --retries 3",
        "curl -u joe:hunter22 -sS https://host/x",
        "Command '['curl', '-u', 'joe:hunter22', 'https://host']'", "wget --user=joe:hunter22 https://host/x",
        "sshpass -p hunter22 rsync -a ckpt/ backup:", "STRIPE=sk_live_hunter22hunter22",
        "SG.hunter22hunter.hunter22hunter",
        "https://hooks.slack.com/services/T000/B000/hunter22", "Authorization: Basic am9lOmh1bnRlcjI0123456789abcdef==",
        "Proxy-Authorization: Basic hunter22aGVsbG8=", "basic hunter22aGVsbG8=",
        "wandb login 0123456789abcdef0123456789abcdef01234567",
        "huggingface-cli login --token hunter22", "use_auth_token='hunter22 b'", "auth_tokens: hunter22",
        "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567 SLURM_JOB_ID=7",
        "SLURM_JWT=eyJhbGciOiJIUzI1.eyJzdWIiOihunter22.hunter22", "export HF_TOKEN=hunter22 NCCL_DEBUG=INFO",
        "{'aws_access_key_id': 'AKIAIOSFODNN7EXAMPLE', 'aws_secret_access_key': 'hunter22/K7MDENG/bPxRfi'}",
        "['token']=hunter22", "token: hunter22", "x-api-key: hunter22", "the api key: hunter22",
    ],
)  # fmt: skip
def test_no_secret_is_shown(text: str) -> None:
    found = shown(f"error: {text} failed")
    assert "[redacted]" in found
    assert not [each for each in ("hunter22", "IOSFODNN7", "0123456789abcdef") if each in found]
    assert shown(found) == found, "what is redacted stays as it is"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("token=1234567890", "token=[redacted]"),
        ("otp_token=482913", "otp_token=[redacted]"),
        ("--token abcdefgh --lr 3", "--token [redacted] --lr 3"),
        ("{'password': 'a b', 'lr': 1}", "{'password': '[redacted]', 'lr': 1}"),
        ("AccountKey=abc==;EndpointSuffix=x", "AccountKey=[redacted];EndpointSuffix=x"),
        ("https://me:pw@host/x", "https://[redacted]@host/x"),
        ("curl -H 'Authorization: Token a' https://host", "curl -H 'Authorization: [redacted]' https://host"),
    ],
)
def test_what_surrounds_a_secret_is_shown(text: str, expected: str) -> None:
    assert shown(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "next token is Paris", "the token is cached", "the secret is out there", "token: 5", "token=<pad>",
        "tokens_per_sec=123456", "token 1.5e-3", "token=[1, 2]", "ssh://root@host/x", "api_key_id=7", "secret_count=3",
        "KeyError: 'lr'", "KeyError: 'api_key'", "KeyError: 'HF_TOKEN'", "key = 3", "primary_key: 7",
        'RuntimeError: Error(s) in loading state_dict for Net: Missing key(s) in state_dict: "a.weight", "token.bias".',
        'Unexpected key(s) in state_dict: "head.weight".', "OSError: Can't load tokenizer.json for '/models/a'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/tokens.bin'", "tokens=4096, tokens/s: 12",
        "max_tokens: 600, num_tokens=7", "pad_token: <pad>", "eos_token_id=2", "loss per token: 3.2", "token=None",
        "api_key=''", "use_auth_token: False", "Unexpected token: }", "AssertionError: token == 5",
        "t.py: error: argument --hf-token: expected one argument", "token::Parser failed", "token: required",
        "TypeError: f() got an unexpected keyword argument 'password'", "TypeError: bad signature: f(int)",
        "ImportError: basic configuration is wrong", "TOKENIZERS_PARALLELISM=false", "PWD=/scratch/job", "OLDPWD=/a",
        "git+https://github.com/a/b@main", "ssh://git@github.com/a/b", "tcp://10.0.0.1:29500/x@y",
        "authorization, and a cookie, too, are missing", "/lustre/Project1/Abc/checkpoints/Step100/Whatever/FileX1",
        "frame #4: _ZN3c104cuda20CUDACachingAllocator9allocateEm16CUDAStream", "sha256 " + "0f" * 32,
        '  File "/work/secret/train.py", line 8, in get_token', "Received SIGTERM, signal 15",
        "step 120 | tokens_per_sec=18211.4 | tokens_per_second: 18211 | tokens/s/gpu=2276 | mfu 41.2", "token: 1024",
        "tokens: 12, num_token=3, loss/token: 3.11, loss_per_token=2.3, token_accuracy: 0.97, train/token_acc=0.5",
        """{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "image_token": "<image>"}""",
        "special_token: [MASK], next_token: 5, image_token=<image>, sep token: x",
        "moe_token_dispatcher_type: alltoall",
        "python train.py --moe-token-dispatcher-type alltoall --moe-token-drop-policy probs --seq-length 4096",
        "ValueError: Invalid token: 50300 not in vocab 50257", "JSONDecodeError: Invalid token: '}' at line 3",
        "size mismatch for model.token_embedding.weight: copying a param with shape torch.Size([50257, 768])",
        "token_emb=Parameter containing", "'token_emb.weight': torch.Size([2])",
        "forward pass=12.1 backward pass = 30.2",
        "tests pass=True", "the password is incorrect", "password is required for user joe",
        "sudo: a password is required",
        "GRAD_KEY=5", "private_key_file: /etc/key.pem", "ssh_key_path=/home/joe/.ssh/id", "token_type: BPE",
        "GOOGLE_APPLICATION_CREDENTIALS=/var/run/gcp.json", "Unable to locate credentials: /home/joe/.aws",
        "docker run -u 1000:1000 image", "Basic block_size=1024-4", "BASIC configuration", "hdfs://nn1@cluster/x",
        "saved to Experiments/GPT3/run42/checkpoints/global/step1000",
        "Outputs/Llama3/Run7/Checkpoints/Epoch12/Step1000",
        "MixtureOfExpertsTransformerEncoderLayerWithRotary2D failed", "commit 3f786850e387550fdab836ed7e6dc881de23001b",
        "commit=3F786850E387550FDAB836ED7E6DC881DE23001B", "s3://bucket/a@b",
        "nvcr.io/nvidia/pytorch:24.01@sha256:9f86d081",
        "SLURM_JOB_ID=7 SLURM_NODELIST=n[1-4] SLURM_TASKS_PER_NODE=8(x4) SSH_AUTH_SOCK=/tmp/ssh-x/agent.9",
        "frame #7: at::_ops::mm::call(at::Tensor const&, at::Tensor const&) + 0x1c6", "tcp://[::1]:29500@x",
    ],
)  # fmt: skip
def test_the_words_of_a_failure_are_shown(text: str) -> None:
    assert shown(text) == text.strip()


def test_what_is_long_is_cut() -> None:
    assert shown("x" * 100_000) == "x" * 297 + "..."


def test_a_text_without_escapes_is_left_alone() -> None:
    assert without_escapes("[0m") == "[0m"


def test_the_json_object_has_the_documented_keys() -> None:
    verdict = Verdict("hang", None, 1, "n1", Action.RESTART, None, 0.5, (Evidence("f", 3, "text"),), "rank 1 hung")
    assert verdict.as_json() == {
        "class": "hang", "error_type": None, "rank": 1, "host": "n1", "node_to_exclude": None, "action": "restart",
        "confidence": 0.5, "evidence": [{"file": "f", "line": 3, "text": "text"}], "sentence": "rank 1 hung",
    }  # fmt: skip

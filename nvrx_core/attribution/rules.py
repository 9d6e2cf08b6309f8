"""The classes of failure: what a log says of each, what to do, and the sentence. Pure.

A class is one entry of `CLASSES`. The entries are in order: of the rules that a line matches, the first decides. A rule
has a literal text, by which lines are found fast, and may have a pattern that is searched in lines with that text; the
groups `rank`, `local`, `host`, `pid` and `code` of a pattern say what the line is about, `work` and `timed_out` which
collective, of the process group `pg`. A literal has no digits: lines that differ in digits only are looked at once.

Sources of the texts: the messages of torch, gloo, NCCL, CUDA, Slurm and the Linux kernel, and of NVIDIA's list of Xid
errors (docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nvrx_core.attribution.verdict import Action

__all__ = ["BY_NAME", "CLASSES", "IGNORED_EXCEPTIONS", "FailureClass", "Kind", "Rule"]


class Kind(enum.IntEnum):
    """What a line says of a failure, from the strongest to the weakest."""

    MACHINE = 0
    """The kernel, the driver or the scheduler's daemon names a cause; it often says so after the ranks have failed."""
    CAUSE = 1
    """The text names a cause."""
    SCHEDULER = 2
    """The job was ended from outside, unless it had failed before."""
    EXCEPTION = 3
    """Some exception."""
    ENDED = 4
    """How a process ended: by a signal, or with an exit code."""
    COLLECTIVE = 5
    """A communication library has failed: a cause only if nothing else has."""
    STALLED = 6
    """A collective timed out: the culprit is a rank that did not take part."""
    CONSEQUENCE = 7
    """A connection to another rank was lost."""
    SYMPTOM = 8
    """Something is wrong, and nothing has failed."""
    NOTE = 9
    """A fact about a rank that is no failure."""


@dataclass(frozen=True)
class Rule:
    """What a log says of a failure.

    Attributes:
        text: a literal part of the line.
        pattern: a regular expression that the line matches, "" for none.
        kind: what the line says of the failure.
        any_level: whether the line counts, too, where its level is INFO or WARNING; None: if it is of the machine or of
            the scheduler.
        action: instead of that of the class.
    """

    text: str
    pattern: str = ""
    kind: Kind = Kind.CAUSE
    any_level: bool | None = None
    action: Action | None = None

    @property
    def is_of_any_level(self) -> bool:
        """Whether the line counts whatever its level is."""
        return self.kind in (Kind.MACHINE, Kind.SCHEDULER) if self.any_level is None else self.any_level

    def search(self, line: str) -> re.Match[str] | bool:
        """Return whether a line that has the text matches: the match, where the rule has a pattern."""
        return (re.search(self.pattern, line) or False) if self.pattern else True  # compiled ones are in re's cache


@dataclass(frozen=True)
class FailureClass:
    """A class of failure.

    Attributes:
        name: as `nvrx-why --json` prints it.
        action: what to do.
        sentence: what has happened, after the name of a rank.
        rules: what logs say of it.
    """

    name: str
    action: Action
    sentence: str
    rules: tuple[Rule, ...] = ()


_XID: Final = r"NVRM: Xid \([^)]*\): (?:{})\b(?:, pid='?(?P<pid>\d+))?"
_SLURM_END: Final = r"(?:JOB|STEP) \S+ (?:ON (?P<host>[\w.-]+) )?CANCELLED"
_TASK: Final = r"srun: error: (?P<host>[\w.-]+): task(?:s [\d,-]+| (?P<rank>\d+)): "
_MPI: Final = r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>[\w.-]+) exited on signal "
_OF_GROUP: Final = r"\[(?:[^\]\[]*PG GUID )?(?P<pg>[^\]\[]*?) ?\bRank \d+\]"
"""The prefix of a line of NCCL's watchdog. The group's GUID is the same on all its ranks, its number need not be."""
_BEGUN: Final = _OF_GROUP + r"(?:.*sequence id: (?P<timed_out>\d+))?.*[lL]ast enqueued (?:NCCL )?work: (?P<work>-?\d+)"
_CRASHES: Final = tuple(
    rule
    for word in ("Segmentation fault", "Bus error", "Illegal instruction", "Floating point exception")
    for rule in (
        Rule(word, _TASK + word, any_level=True),
        Rule(word, rf"(?:^|\d +){word}(?: +\(core dumped\)|$)|{word} +\(core dumped\)", Kind.ENDED),
    )
)
"""What srun and shells say of a signal by which a crashed process ends."""
_EXIT_CODE: Final = (
    r"(?i)\b(?:(?P<by>(?:exited|failed|terminated|died|ended|crashed) (?:\w+ )?with (?:an? )?(?:non-?zero )?(?:exit )?)"
    r"|exit(?:ed)? )(?:code|status)\b[ :=]{0,8}(?!0\b)(?P<code>-?\d+)\b(?(by)|(?=\s*(?:$|[],.;()\"'])))"
)
"""Where no verb says that something has ended, nothing follows: tables, and manuals, have such texts, too."""
_NOT_IF: Final = (
    r"(?:^|[,;:.])(?:(?!\b(?:[Ii]f|[Ww]hen|[Oo]nce|[Uu]pon|[Uu]nless|[Oo]n (?=received|preempted))\b)[^,;:.])*"
)
"""From the beginning of a clause that does not say what is done in case of a signal or a preemption."""
ABSTAINS: Final = (
    r"hang: (?:all ranks are alike|no rank is behind|the ranks wait for each other"
    r"|the ranks call different collectives)"
)
"""The line of a hang that names no rank."""
_FT_RANK: Final = r"rank (?P<rank>\d+) \([^)]*pid (?P<pid>\d+)\) "

CLASSES: Final = (
    FailureClass(
        "gpu_lost",
        Action.EXCLUDE_NODE,
        "lost its GPU",
        (
            Rule("NVRM: Xid", _XID.format("46|74|79|61|62|109|119|120|122|136|140|143|145|149|150|151"), Kind.MACHINE),
            Rule("fallen off the bus", "", Kind.MACHINE),
            Rule("GPU is lost", "", Kind.MACHINE),
            Rule("GPU_IS_LOST"),
            Rule("Unable to determine the device handle for", "", Kind.MACHINE),
            Rule("cudaErrorDevicesUnavailable"),
            Rule("CUDA error: the launch timed out"),
            Rule("requires a reset", "[Gg][Pp][Uu].* requires a reset"),
            Rule("system not yet initialized", "CUDA error: system not yet initialized"),
        ),
    ),
    FailureClass(
        "ecc_error",
        Action.EXCLUDE_NODE,
        "has a memory error of its GPU (ECC)",
        (
            Rule("NVRM: Xid", _XID.format("48|64|94|95|160|171|172"), Kind.MACHINE),
            Rule("ncorrectable ECC"),
            Rule("ncorrectable NVLink"),
            Rule("double bit ECC"),
            Rule("ECC_UNCORRECTABLE"),
            Rule("ECCUncorrectable"),
            Rule("ECC error", "(?i)(?:un-?correctable|double.bit|fatal|contained).*ECC error"),
            Rule("ouble bit error", "", Kind.MACHINE),
        ),
    ),
    FailureClass(
        "host_out_of_memory",
        Action.STOP,
        "ran out of host memory",
        (
            Rule("Out of memory: Kill", r"Out of memory: Kill(?:ed)? process (?P<pid>\d+)", Kind.MACHINE),
            Rule("cgroup out of memory", r"Killed? process (?P<pid>\d+)", Kind.MACHINE),
            Rule("oom-kill:", r"\bpid=(?P<pid>\d+)", Kind.MACHINE),
            Rule("oom-kill", r"oom-kill event", Kind.MACHINE),
            Rule("oom_kill", r"oom_kill event", Kind.MACHINE),
            Rule("invoked oom-killer", "", Kind.MACHINE),
            Rule("OOMKilled", "", Kind.MACHINE),
            Rule("OOM Killed", "", Kind.MACHINE),
            Rule("Out Of Memory", _TASK + "Out Of Memory", Kind.MACHINE),
            Rule("OUT_OF_MEMORY", r"(?:State|STATE|state|srun|slurm|sacct).*\bOUT_OF_MEMORY", Kind.MACHINE),
            Rule("OOM killer was active", _FT_RANK, Kind.MACHINE),
            Rule("TERM_MEMLIMIT", "", Kind.MACHINE),
            Rule("low on resource", "low on resource: memory", Kind.MACHINE),
            Rule("xceeded", r"(?i)exceeded (?:step |job )?memory limit", Kind.MACHINE),
            Rule("can't allocate memory"),
            Rule("not enough memory: you tried to allocate"),
            Rule("Cannot allocate memory", "^(?!.*unable to mmap)"),
            Rule("MemoryError", r"(?:^|[\s.:'\"|])(?:\w*Array)?MemoryError\b"),
            Rule("std::bad_alloc"),
            Rule("OutOfMemoryError: Task was killed due to the node running low on memory"),
            Rule("workers were killed due to memory pressure"),
        ),
    ),
    FailureClass(
        "time_limit",
        Action.RESTART,
        "was ended at the scheduler's time limit",
        (
            Rule("DUE TO TIME LIMIT", _SLURM_END, Kind.SCHEDULER),
            Rule("job killed: walltime", "", Kind.SCHEDULER),
            Rule("active longer than specified deadline", "", Kind.SCHEDULER),
            Rule("TERM_RUNLIMIT", "", Kind.SCHEDULER),
            Rule("exceeded limit", "(?i)walltime.*exceeded limit", Kind.SCHEDULER),
            Rule("DeadlineExceeded", "(?i)job .*DeadlineExceeded|reason: DeadlineExceeded", Kind.SCHEDULER),
            Rule("TIMEOUT", r"(?i)(?:state|slurm)\W.*\bTIMEOUT\b", Kind.SCHEDULER),
        ),
    ),
    FailureClass(
        "preemption",
        Action.RESTART,
        "was preempted",
        (
            Rule("DUE TO PREEMPTION", _SLURM_END, Kind.SCHEDULER),
            Rule("DUE TO JOB REQUEUE", _SLURM_END, Kind.SCHEDULER),
            Rule(
                "preempted",
                r"(?i)" + _NOT_IF + r"\b(?:(?:is|was|been|being|are|were|got|has timed out/|to be|node|job|vm|instance"
                r"|pod) ?preempted(?!=)|(?:node|job|vm|instance|pod) (?=\S*[\d-])\S+ preempted"
                r"(?=\s*(?:$|[.,;!)]|(?:by|at|on)\b|:(?! ?(?:0|false|no)\b))))|\bpreempted by\b|: preempted\b",
                Kind.SCHEDULER,
            ),
            Rule("Preempted", r"\bPreempted\b(?![:=] ?(?i:0|false|no)\b)", Kind.SCHEDULER),
            Rule("PREEMPTED", r"\bPREEMPTED\b", Kind.SCHEDULER),
            Rule(
                "reemption",
                r"(?i)preemption (?:notice|signal|event|request|warning)(?! ?handl)|(?:due to|because of|by|for)"
                r" preemption\b|maintenance.*preemption",
                Kind.SCHEDULER,
            ),
            Rule(
                "interruption",
                r"(?i)(?:spot|instance) (?:instance )?interruption (?:notice|warning)",
                Kind.SCHEDULER,
            ),
            Rule("termination notice", "", Kind.SCHEDULER),
        ),
    ),
    FailureClass(
        "hang",
        Action.RESTART,
        "hung",
        (
            Rule("hung: ", _FT_RANK, any_level=True),
            Rule("is hung", r"rank (?P<rank>\d+) \([^)]*\) is hung", any_level=True),
            Rule(
                "hang: rank ",
                r"hang: rank (?P<rank>\d+) \((?:initial rank \d+, )?(?P<host>[\w.-]+)\) (?:stands|has|is)",
                any_level=True,
            ),
            Rule("hang: rank ", r"hang: rank (?P<rank>\d+) has not joined", any_level=True),
            Rule("hang: ", ABSTAINS, any_level=True),
            Rule(
                "_TIMEOUT",
                r"(?:SOFT|HARD)_TIMEOUT(?: \([^)]*\))? on rank (?P<rank>\d+) \(initial rank \d+, (?P<host>[\w.-]+) pid",
                any_level=True,
            ),
            Rule("failed to pass monitoredBarrier", r"[Rr]anks? (?P<rank>\d+) failed to pass monitoredBarrier"),
            Rule("failed to pass monitoredBarrier", "", Kind.STALLED),
            Rule("watchdog got stuck"),
            Rule("watchdog hang"),
            Rule("no heartbeat of its watchdog"),
            Rule("Heartbeat monitor timed out"),
            Rule("Timed out waiting", r"Timed out waiting \d+ms for (?:recv|send)", Kind.STALLED),
            Rule("imeout", r"gloo.*[Tt]imeout|[Tt]imeout.*gloo", Kind.STALLED),
            Rule("application timeout", "(?i)gloo", Kind.STALLED),
            Rule(
                "blocked for more than", r"task \S+:\d+ blocked for more than \d+ seconds", Kind.STALLED, any_level=True
            ),
        ),
    ),
    FailureClass(
        "nccl_timeout",
        Action.RESTART,
        "did not take part in a collective of NCCL, which timed out",
        (
            Rule(
                "aught collective operation timeout",
                rf"(?:{_OF_GROUP}.*)?aught collective operation timeout(?:.*?\bSeqNum=(?P<timed_out>\d+))?",
                Kind.STALLED,
            ),
            Rule("Timeout at NCCL work", "", Kind.STALLED),
            Rule("Timeout at collective", "", Kind.STALLED),
            Rule("NCCL timeout", r"(?i)error.*NCCL timeout|NCCL timeout.*(?:error|rank)", Kind.STALLED),
            Rule("collective operation timeout", "", Kind.STALLED),
            Rule("last enqueued", _BEGUN, Kind.NOTE),
            Rule("Last enqueued", _BEGUN, Kind.NOTE),
            Rule("Some NCCL operations have failed or timed out", "", Kind.NOTE),
            Rule("Received a dump signal", "", Kind.NOTE),
            Rule("Received a global dump signal", "", Kind.NOTE),
        ),
    ),
    FailureClass(
        "cuda_out_of_memory",
        Action.STOP,
        "ran out of GPU memory",
        (
            Rule("CUDA out of memory"),
            Rule("HIP out of memory"),
            Rule("CUDA error: out of memory"),
            Rule("OutOfMemoryError", r"(?:torch|cuda|cupy)\S*\.OutOfMemoryError|^OutOfMemoryError"),
            Rule("CUDA_ERROR_OUT_OF_MEMORY"),
            Rule("cudaErrorMemoryAllocation"),
            Rule("CUBLAS_STATUS_ALLOC_FAILED"),
            Rule("CUDNN_STATUS_ALLOC_FAILED"),
            Rule("RESOURCE_EXHAUSTED: Out of memory"),
            Rule("Failed to CUDA", "out of memory"),
            Rule("Cuda failure", "out of memory"),
            Rule("XPU out of memory"),
            Rule("out of memory", r"(?i)(?:gpu|device|cuda|vram).*out of memory"),
        ),
    ),
    FailureClass(
        "version_mismatch",
        Action.STOP,
        "has software of versions that do not fit",
        (
            Rule("no kernel image is available"),
            Rule("undefined symbol", "(?i)(?:error|import).*undefined symbol|undefined symbol:"),
            Rule("cannot import name"),
            Rule("driver on your system is too old"),
            Rule("driver version is insufficient"),
            Rule("forward compatibility was attempted"),
            Rule("mismatches the version that was used to compile"),
            Rule("' not found (required by"),
            Rule("may indicate binary incompatibility"),
            Rule("compiled against API version"),
            Rule("not compatible", r"(?i)error.*(?:version|torch|cuda).*not compatible"),
            Rule("VersionConflict"),
            Rule("was removed in the NumPy"),
            Rule("incompatible with this version"),
            Rule(
                "ersion mismatch",
                r"(?i)(?:error|fatal|failed|driver/library|assert).*version mismatch|version"
                r" mismatch.*(?:error|fail)|Driver/library version mismatch",
            ),
            Rule("is required for a normal functioning"),
            Rule("JobMismatch", "version"),
            Rule(
                "Error",
                r"(?:Import|Runtime|Version|Assertion)Error: .*(?:requires?|need|expected?"
                r"|found)\b.{0,60}\b(?:version|>=|==|<)\s*v?\d+\.\d",
            ),
            Rule("DistributionNotFound"),
            Rule("was compiled with a different version"),
            Rule("compiled with different CUDA"),
            Rule("unsupported toolchain"),
            Rule(
                "AttributeError: module",
                r"AttributeError: module '(?:torch|numpy|transformers|jax|triton|megatron"
                r"|transformer_engine|flash_attn|apex|lightning|pytorch_lightning|deepspeed)[\w.]*' has no attribute",
            ),
        ),
    ),
    FailureClass(
        "cuda_error",
        Action.RESTART,
        "had an error of CUDA",
        (
            Rule("device-side assert", "assert(?!ions)"),  # there is advice on them, too
            Rule("llegal memory access"),
            Rule("nspecified launch failure"),
            Rule("isaligned address", "(?i)cuda"),
            Rule("NVRM: Xid", _XID.format("13|31|43|68|69"), Kind.SYMPTOM, any_level=True),
            Rule("NVRM: Xid", _XID.format(r"\d+"), Kind.NOTE, any_level=True),
            Rule("CUBLAS_STATUS_"),
            Rule("CUDNN_STATUS_"),
            Rule("CUSPARSE_STATUS_"),
            Rule("CUFFT_"),
            Rule("cuBLAS error", ""),
            Rule("CUDA error"),
            Rule("CUDA Error"),
            Rule("CUDA driver error"),
            Rule("Cuda error"),
            Rule("cuda runtime error"),
            Rule("cudaError"),
            Rule("CUDA_ERROR_"),
            Rule("No CUDA GPUs are available"),
            Rule("HIP error"),
            Rule("Triton Error"),
            Rule("AcceleratorError"),
        ),
    ),
    FailureClass(
        "data_loader",
        Action.RESTART,
        "lost a worker of its data loader",
        (
            Rule(
                "DataLoader worker",
                r"DataLoader worker \(pid(?:\(s\))? (?P<pid>\d+).*(?:killed|exited|crashed|aborted|terminated)"
                r"(?! by signal: Terminated)",
            ),
            Rule(  # its rank, or whoever ends that, has ended it
                "killed by signal: Terminated",
                r"DataLoader worker \(pid(?:\(s\))? (?P<pid>\d+)\) is killed by signal: Terminated",
                Kind.SYMPTOM,
            ),
            Rule("in DataLoader worker process"),
            Rule("bus error encountered in worker"),
            Rule("insufficient shared memory"),
            Rule("unable to mmap", "(?i)bytes"),
            Rule("unable to open shared memory object"),
            Rule("Pin memory thread exited"),
            Rule("DataLoader timed out"),
            Rule("unable to write to file </torch_"),
            Rule("out of shared memory"),
            Rule("items of ancdata"),
        ),
    ),
    FailureClass(
        "nan_loss",
        Action.STOP,
        "has a loss or gradient that is not a number",
        (
            Rule("found NaN in"),
            Rule("found Inf in"),
            Rule("probability tensor contains either"),
            Rule("Unexpected result nan", r"on rank (?P<rank>\d+)"),
            Rule("Minimum loss scale reached"),
            Rule("returned nan values in its"),
            Rule("NanError"),
            Rule("FloatingPointError", "(?i)nan|inf|loss|scale"),
            Rule("NaN", r"(?i)\b(?:Error|Exception|fatal|abort\w*|stop\w*|assert\w*)\b.*\bNaN\b|Error: .*\bNaN\b"),
            Rule(
                "NaN",
                r"(?i)\b(?:loss|grad\w*|norm|activations?|weights?|output"
                r"|parameters?)\b.{0,40}\b(?:is|are|became|become|contains?|has|went|turned|:|=)"
                r" ?(?:infinite or )?NaNs?\b",
            ),
            Rule(
                "nan",
                r"(?:Error|Exception)\b.*\b(?:loss|grad\w*|norm|scale)\b.*\bnan\b|(?:Error"
                r"|Exception): .*\bnan\b.*\b(?:loss|grad\w*)\b",
            ),
            Rule("oss is nan", r"(?i)loss is (?:nan|not finite)(?!\?)", any_level=True),
            Rule("oss is nan, stopping"),
            Rule("on-finite loss"),
            Rule("loss is not finite"),
            Rule("urrent loss scale already at minimum"),
            Rule("overflow: nan"),
            Rule("non-finite", "(?i)(?:error|exception|assert|stop|abort).*non-finite|non-finite.*cannot be"),
            Rule("nan", r"(?i)detected (?:a )?nan\b|nan (?:value )?(?:was )?detected", any_level=True),
            Rule("nan", r"(?i)\bloss['\"]?\s{0,3}[:= ]\s{0,3}(?:tensor\()?nan\b", Kind.SYMPTOM, any_level=True),
        ),
    ),
    FailureClass(
        "device_mismatch",
        Action.STOP,
        "has tensors on devices that do not fit",
        (
            Rule("to be on the same device"),
            Rule("same device", "(?i)error.*same device"),
            Rule("Error", r"Input type \(torch\.(cuda\.)?\w+\) and weight type \(torch\.(?(1)(?!cuda)|cuda\.)\w+\)"),
            Rule("device type for generator but found"),
            Rule("should be either on cpu or on the same device"),
            Rule("must have its parameters and buffers on device"),
            Rule("Attempting to deserialize object on"),
            Rule("ensors must be CUDA and dense"),
            Rule("No backend type associated with device type"),
            Rule("cannot be accessed from Triton"),
            Rule("device type tensor to numpy"),
            Rule("device type Tensor to numpy"),
            Rule("torch.cuda.is_available() is False"),
            Rule(
                "Error",
                r"[Ee]xpected .{0,60}\bdevice\b.{0,40}\b(?:but|got)\b|[Ee]xpected (?:object of"
                r" )?(?:backend|device type) \w+ but got",
            ),
            Rule("found at least two devices"),
            Rule("Error", "Error: .*unsupported (?:mixed )?devices?|Tensor on device .* is not on the expected device"),
        ),
    ),
    FailureClass(
        "shape_or_dtype",
        Action.STOP,
        "has tensors whose shapes or types do not fit",
        (
            Rule("shapes cannot be multiplied"),
            Rule("must match the size of tensor"),
            Rule("size mismatch"),
            Rule("is invalid for input of size"),
            Rule("expected scalar type"),
            Rule("have the same dtype"),
            Rule("should be the same", r"Input type \(.*should be the same"),
            Rule("to match target batch_size"),
            Rule("to be equal", "expected .* to be equal"),
            Rule("Given groups="),
            Rule("each tensor to be equal size"),
            Rule("Sizes of tensors must match"),
            Rule("have one of the following scalar types"),
            Rule("dtypes match for the source"),
            Rule("source and destination dtypes match"),
            Rule("can't be cast to"),
            Rule("Dimension out of range"),
            Rule("could not broadcast"),
            Rule("could not be broadcast together"),
            Rule("not implemented for '"),
            Rule("hape mismatch"),
            Rule("inconsistent tensor size"),
            Rule("dtype mismatch"),
            Rule("doesn't match the broadcast shape"),
            Rule("Expected size for first two dimensions"),
            Rule("must be same size"),
            Rule("Tensors must have same number of dimensions"),
            Rule("expected dtype"),
            Rule("Found dtype"),
            Rule(
                "Error",
                r"Error: .*(?:[Ee]xpected|must|should|got|invalid).{0,80}\b(?:\d+-?D|dim(?:ension)?s?"
                r"|dtype|shapes?)\b.{0,80}",
            ),
            Rule(
                "Error",
                r"Error: .*(?:shapes?|dtypes?) .{0,40}(?:mismatch|not match|do not|does not|different|incompatible)",
            ),
            Rule("is not supported for type", "dtype|torch"),
            Rule("selected index k out of range"),
            Rule("should contain", r"should contain \d+ elements not"),
            Rule("mat", r"\bmat1 and mat2\b"),
            Rule("Error", r"Error: (?:.*Expected .*Tensor|.*shape '\[)"),
            Rule("not aligned:", "shapes .* not aligned"),
            Rule("inhomogeneous shape"),
        ),
    ),
    FailureClass(
        "port_in_use",
        Action.RESTART,
        "found its port in use",
        (
            Rule("ddress already in use"),
            Rule("EADDRINUSE"),
            Rule("failed to listen on any local network address"),
            Rule("port is already allocated"),
            Rule("ort", r"(?i)error.*\bport \d+ is already (?:in use|used)"),
            Rule("in use", r"(?i)\bport \d+.{0,20}\b(?:already |is )in use"),
        ),
    ),
    FailureClass(
        "disk_full",
        Action.STOP,
        "found a disk full",
        (
            Rule("No space left on device"),
            Rule("ENOSPC"),
            Rule("isk quota exceeded"),
            Rule("EDQUOT"),
            Rule("PytorchStreamWriter failed writing file"),
            Rule("inline_container.cc", "unexpected pos"),
            Rule("isk is full"),
            Rule("isk full"),
            Rule("Errno ", r"Errno (?:28|122)\]"),
            Rule("file write failed", "(?i)error"),
            Rule("DiskPressure"),
            Rule("low on resource", "low on resource: ephemeral-storage", Kind.MACHINE),
            Rule("FileWriteError", ""),
        ),
    ),
    FailureClass(
        "permission_denied",
        Action.STOP,
        "was denied access",
        (
            Rule("PermissionError"),
            Rule("ermission denied"),
            Rule("Errno ", r"Errno 13\]"),
            Rule("EACCES"),
            Rule("Operation not permitted", "(?i)error|errno"),
            Rule("Read-only file system"),
            Rule("AccessDenied"),
            Rule("GatedRepoError"),
            Rule("Forbidden", "(?i)error.*403"),
            Rule("Unauthorized", "(?i)error.*401"),
            Rule("Client Error", "40[13] Client Error"),
        ),
    ),
    FailureClass(
        "missing_module",
        Action.STOP,
        "lacks a module",
        (
            Rule("No module named"),
            Rule("ModuleNotFoundError"),
            Rule("cannot open shared object file", r"(?i)error.*cannot open shared object file"),
            Rule("PackageNotFoundError"),
            Rule(
                "ImportError",
                r"ImportError: .*(?:not installed|is required|requires? (?:the )?[\w-]+ (?:library"
                r"|package)|install|not found|DLL load failed)",
            ),
        ),
    ),
    FailureClass(
        "missing_file",
        Action.STOP,
        "lacks a file",
        (
            Rule("FileNotFoundError"),
            Rule(
                "No such file or directory",
                r"(?i)(?:error|errno|can't open|cannot|fatal|failed|^bash|^sh|^/bin|: line \d+).*No"
                r" such file or directory",
            ),
            Rule("does not appear to have a file named"),
            Rule("NotADirectoryError"),
            Rule("IsADirectoryError"),
            Rule("can't open file"),
            Rule(
                "Error",
                r"(?:OS|Runtime|Value|Assertion|IO|EntryNotFound|CheckpointException"
                r"|HFValidation)\w*Error: .*(?:\bfile|\bcheckpoint|\bpath|\bdirectory|\bdataset"
                r"|\bfolder)\b.{0,120}(?:not exist|not found|is missing|cannot find|could ?n[o']t be found)",
            ),
            Rule("Can't load tokenizer for"),
            Rule(
                "Error",
                r"Error: .*(?:[Cc]annot|[Cc]ould not|[Uu]nable to|Can't|[Cc]ouldn't) (?:find|locate"
                r"|open) .{0,60}(?:file|checkpoint|path|directory|dataset|/)",
            ),
            Rule("EntryNotFoundError"),
            Rule("RepositoryNotFoundError"),
            Rule("command not found", r"(?:line \d+|bash|sh): .*command not found"),
            Rule("Errno ", r"Errno 2\]"),
            Rule("NoSuchKey"),
            Rule("No such object"),
        ),
    ),
    FailureClass(
        "assertion",
        Action.STOP,
        "failed an assertion",
        (
            Rule("AssertionError", r"(?:^|[\s.:'\"|])AssertionError\b"),
            Rule("Assertion `", r"Assertion `.*' failed"),
            Rule("INTERNAL ASSERT FAILED"),
        ),
    ),
    FailureClass(
        "segmentation_fault",
        Action.RESTART,
        "crashed in native code",
        (
            Rule("exited on signal", _MPI + r"11\b", Kind.ENDED),
            Rule("Fatal Python error: Segmentation fault"),
            Rule("Fatal Python error: Bus error"),
            Rule("Fatal Python error: Illegal instruction"),
            Rule("Fatal Python error: Floating point exception"),
            Rule("Signal: Segmentation fault"),
            Rule("Signal: Bus error"),
            Rule("Segfault encountered"),
            *_CRASHES,
            Rule("Segmentation fault", "", Kind.ENDED),
            Rule("segmentation fault", "", Kind.ENDED),
            Rule("segfault at", r"\[(?P<pid>\d+)\]: segfault at", Kind.MACHINE),
            Rule("SIGSEGV", r"(?:Caught|Received|Unhandled|got) (?:signal )?.{0,20}SIGSEGV"),
            Rule("double free or corruption"),
            Rule("corrupted size vs. prev_size"),
            Rule("malloc(): ", r"malloc\(\): \w+"),
            Rule("free(): invalid", ""),
            Rule("corrupted double-linked list"),
            Rule("stack smashing detected"),
        ),
    ),
    FailureClass(
        "peer_lost",
        Action.RESTART,
        "was lost",
        (
            Rule("DUE TO NODE FAILURE", "", Kind.SCHEDULER),
            Rule("Node failure on", r"Node failure on (?P<host>[\w.-]+)", Kind.MACHINE),
            Rule("has not moved its lease for", "", Kind.ENDED, any_level=True),
            Rule("by peer", "", Kind.CONSEQUENCE),
            Rule("onnection closed by remote peer", "", Kind.CONSEQUENCE),
            Rule("ncclRemoteError", "", Kind.CONSEQUENCE),
            Rule("remote process exited", "", Kind.CONSEQUENCE),
            Rule("from peer", "Got (?:completion|async event).* from peer", Kind.CONSEQUENCE),
            Rule("communicator was aborted", "", Kind.CONSEQUENCE),
            Rule("Broken pipe", "", Kind.CONSEQUENCE),
            Rule("BrokenPipeError", "", Kind.CONSEQUENCE),
            Rule("Socket closed", "", Kind.CONSEQUENCE),
            Rule("bytes", r"\bgot 0 bytes", Kind.CONSEQUENCE),
            Rule("ConnectionResetError", "", Kind.CONSEQUENCE),
            Rule("recvValue failed", "", Kind.CONSEQUENCE),
            Rule("sendBytes failed", "", Kind.CONSEQUENCE),
            Rule("recvVector failed", "", Kind.CONSEQUENCE),
            Rule("client socket has timed out", "", Kind.CONSEQUENCE),
            Rule("client socket has failed to connect", "", Kind.CONSEQUENCE),
            Rule("waiting for clients", "(?i)timed out|timeout", Kind.CONSEQUENCE),
            Rule("Socket Timeout", "", Kind.CONSEQUENCE),
            Rule("wait timeout after", "", Kind.CONSEQUENCE),
            Rule("Timeout waiting for key", "", Kind.CONSEQUENCE),
            Rule("imeout waiting for", "(?i)store|key|rendezvous", Kind.CONSEQUENCE),
            Rule("DistNetworkError", "", Kind.CONSEQUENCE),
            Rule("DistStoreError", "", Kind.CONSEQUENCE),
            Rule("RendezvousConnectionError", "", Kind.CONSEQUENCE),
            Rule("RendezvousClosedError", "", Kind.CONSEQUENCE),
            Rule("RendezvousTimeoutError", "", Kind.CONSEQUENCE),
            Rule("onnection refused", "(?i)gloo|c10d|tcpstore|socket|nccl", Kind.CONSEQUENCE),
            Rule("onnection reset", "", Kind.CONSEQUENCE),
            Rule("No route to host", "(?i)gloo|c10d", Kind.CONSEQUENCE),
            Rule("StoreLost", "", Kind.CONSEQUENCE),
            Rule("PeerExited", "", Kind.CONSEQUENCE),
            Rule("RestartAbort", "", Kind.CONSEQUENCE),
            Rule("onnectFullMesh failed", "", Kind.CONSEQUENCE),
            Rule("Application timeout caused pair closure", "", Kind.CONSEQUENCE),
            Rule(
                "rank",
                r"\brank (?P<rank>\d+) (?:is |was )?(?:lost|unreachable|dead)\b",
                any_level=True,
                kind=Kind.CONSEQUENCE,
            ),
            Rule("ActorDiedError", "", Kind.ENDED),
            Rule("terminated by another", "", Kind.CONSEQUENCE),
        ),
    ),
    FailureClass(
        "nccl_error",
        Action.RESTART,
        "had an error of NCCL",
        (
            Rule("ncclSystemError", "", Kind.COLLECTIVE),
            Rule("ncclInternalError", "", Kind.COLLECTIVE),
            Rule("ncclInvalidUsage", "", Kind.COLLECTIVE),
            Rule("ncclInvalidArgument", "", Kind.COLLECTIVE),
            Rule("ncclUnhandledCudaError", "", Kind.COLLECTIVE),
            Rule("unhandled system error", "", Kind.COLLECTIVE),
            Rule("unhandled cuda error", "", Kind.COLLECTIVE),
            Rule("NCCL error", "", Kind.COLLECTIVE),
            Rule("NCCL Error", "", Kind.COLLECTIVE),
            Rule("NCCL failure", "", Kind.COLLECTIVE),
            Rule("Duplicate GPU detected", "", Kind.COLLECTIVE),
            Rule(
                "NCCL WARN",
                r"(?i)NCCL WARN .*(?:fail|error|refused|unreachable|no route|abort|unable)",
                Kind.COLLECTIVE,
            ),
        ),
    ),
    FailureClass(
        "operator_kill",
        Action.STOP,
        "was ended from outside",
        (
            Rule("CANCELLED", _SLURM_END + " AT (?!.*DUE TO TASK FAILURE)", Kind.SCHEDULER),
            Rule("CANCELLED", r"CANCELLED by \d+", Kind.SCHEDULER),
            Rule(  # why a node has left its job, which goes on
                "the launcher has received signal",
                "^the launcher has",
                Kind.ENDED,
                any_level=True,
                action=Action.RESTART,
            ),
            Rule("has received signal", r"has received signal (?:15|2|1)\b", Kind.SCHEDULER),
            Rule("death signal, shutting down", "", Kind.SCHEDULER),
            Rule("got signal: ", r"got signal: (?:15|2|1)\b", Kind.SCHEDULER),
            Rule("KeyboardInterrupt", r"(?:^|[\s.:])KeyboardInterrupt\b", Kind.SCHEDULER, any_level=False),
            Rule(
                "eceived SIG",
                _NOT_IF + r"[Rr]eceived (?:signal )?(?:SIGTERM|SIGINT)",
                Kind.SCHEDULER,
                action=Action.RESTART,
            ),
            Rule("aught signal SIG", r"[Cc]aught signal (?:SIGTERM|SIGINT)", Kind.SCHEDULER, action=Action.RESTART),
            Rule("Killed", _TASK + "Killed", Kind.ENDED, any_level=True, action=Action.RESTART),
            Rule("Terminated", _TASK + "Terminated", Kind.SCHEDULER, action=Action.RESTART),
            Rule(
                "Killed",
                r": line \d+: +(?P<pid>\d+) Killed|^Killed$|(?<!\d)\d+ Killed +",
                Kind.ENDED,
                any_level=True,
                action=Action.RESTART,
            ),
            Rule("exited on signal", _MPI + r"9\b", Kind.ENDED, action=Action.RESTART),
            Rule("exited on signal", _MPI + r"15\b", Kind.SCHEDULER, action=Action.RESTART),
        ),
    ),
    FailureClass(
        "user_exception",
        Action.RESTART,
        "raised an exception",
        (
            Rule(
                "error: ",
                r"^\S{1,200}: error: (?:unrecognized arguments|the following arguments are required"
                r"|argument |ambiguous option|invalid choice)",
                Kind.EXCEPTION,
                action=Action.STOP,
            ),
            Rule("Error: ", r"^(?:Syntax|Indentation|Tab)Error: ", Kind.EXCEPTION, action=Action.STOP),
        ),
    ),
    FailureClass(
        "unknown",
        Action.RESTART,
        "failed, and the logs do not say why",
        (
            Rule("the job ends with code", r"ends with code (?P<code>[1-9]\d*)", Kind.ENDED, any_level=True),
            # How a process ended; `classification` makes the class of the code.
            Rule(
                "terminated with code",
                r"process with PID (?P<pid>\d+) terminated with code (?P<code>-?\d+)",
                Kind.ENDED,
                any_level=True,
            ),
            Rule(
                "failed (exitcode: ",
                r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)",
                Kind.ENDED,
                any_level=True,
            ),
            Rule("was ended by ", _FT_RANK + r"was ended by (?P<signal>\w+)", Kind.ENDED, any_level=True),
            Rule(
                "has failed with exit code",
                _FT_RANK + r"has failed with exit code (?P<code>\d+)",
                Kind.ENDED,
                any_level=True,
            ),
            Rule("while it was monitored", _FT_RANK, Kind.ENDED, any_level=True),
            Rule(
                "TERMINATED",
                r"TERMINATED(?: \([^)]*\))? on rank (?P<rank>\d+) \(initial rank \d+,"
                r" (?P<host>[\w.-]+) pid (?P<pid>\d+)\)",
                Kind.ENDED,
                any_level=True,
            ),
            Rule("xited with", _TASK + r"Exited with exit code (?P<code>\d+)", Kind.ENDED, any_level=True),
            Rule("Aborted", _TASK + r"(?P<signal>Aborted)", Kind.ENDED, any_level=True),
            Rule(
                "terminated with signal",
                r"process (?P<local>\d+) terminated with signal (?P<signal>\w+)",
                Kind.ENDED,
                any_level=True,
            ),
            Rule(
                "exited with code",
                r"(?:worker|rank|process) (?P<rank>\d+) exited with code (?P<code>-\d+|[1-9]\d*)",
                Kind.ENDED,
                any_level=True,
            ),
            Rule("return code = ", r"exits with return code = (?P<code>-?\d+)", Kind.ENDED, any_level=True),
            Rule("with non-zero exit", r"(?:exit (?:status|code):?)\s*(?P<code>-?\d+)?", Kind.ENDED, any_level=True),
            Rule("died with", r"died with <Signals\.(?P<signal>\w+)", Kind.ENDED),
            Rule("core dumped", r"(?P<signal>Aborted) +\(core dumped\)", Kind.ENDED),
            Rule("Fatal Python error: ", "", Kind.ENDED),
            Rule("terminate called", "", Kind.ENDED),
            Rule("exited on signal", _MPI, Kind.ENDED),
            Rule("DUE TO TASK FAILURE", _SLURM_END, Kind.SYMPTOM, any_level=True),
            Rule("srun: error: Unable to ", "", Kind.SYMPTOM),
            *(Rule(text, _EXIT_CODE, Kind.SYMPTOM) for text in ("xit code", "xit status", "xited with ", "Exit Code")),
        ),
    ),
    FailureClass("clean", Action.NONE, "no failure was found"),
)
"""The classes of failure, in the order in which a line is tried."""

BY_NAME: Final[Mapping[str, FailureClass]] = {each.name: each for each in CLASSES}

IGNORED_EXCEPTIONS: Final = frozenset({
    "ChildFailedError", "ProcessRaisedException", "ProcessExitedException", "SignalException", "CalledProcessError",
    "SystemExit", "WorkerGroupFailure", "JobFailedError", "ExceptionGroup", "BaseExceptionGroup",
})  # fmt: skip
"""Exceptions by which a launcher says that a worker has failed, by which a process exits, and that hold others."""

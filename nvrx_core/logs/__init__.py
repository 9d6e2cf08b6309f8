"""Per-cycle logs of a job of many nodes: one writer for the shared file system, and clients that keep what it misses.

A node's launcher gives the lines of its workers to a process of its own (`node`), which sends them in chunks to the log
server (`server`), directly or through a leaf. Decisions are in pure modules: `rank_lines`, `chunks`, `node_buffer`,
`reception`, `write_queue`. `grpc_service` is the only module that imports grpcio.
"""

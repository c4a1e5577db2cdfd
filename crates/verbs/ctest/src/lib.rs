//! Nothing to use: the tests of this package compare `verbs` and `mlx5-layout` with the headers of rdma-core.

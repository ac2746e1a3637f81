//! Raft's way to other nodes. A cluster of one has no peers, so this one reaches nobody, and says so.

use openraft::BasicNode;
use openraft::error::{InstallSnapshotError, RPCError, RaftError, Unreachable};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};

use crate::metastore::types::TypeConfig;

/// The network of a node without peers.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPeers;

/// The way to one node that cannot be reached.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("this node has no connection to node {target}")]
pub struct NoWay {
    target: u64,
}

impl RaftNetworkFactory<TypeConfig> for NoPeers {
    type Network = NoWay;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> NoWay {
        NoWay { target }
    }
}

type RpcError<E = openraft::error::Infallible> = RPCError<u64, BasicNode, RaftError<u64, E>>;

impl NoWay {
    fn unreachable<E: std::error::Error>(self) -> RpcError<E> {
        RPCError::Unreachable(Unreachable::new(&self))
    }
}

impl RaftNetwork<TypeConfig> for NoWay {
    async fn append_entries(
        &mut self,
        _rpc: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RpcError> {
        Err(self.unreachable())
    }

    async fn install_snapshot(
        &mut self,
        _rpc: InstallSnapshotRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, RpcError<InstallSnapshotError>> {
        Err(self.unreachable())
    }

    async fn vote(
        &mut self,
        _rpc: VoteRequest<u64>,
        _option: RPCOption,
    ) -> Result<VoteResponse<u64>, RpcError> {
        Err(self.unreachable())
    }
}

//! The node's configuration: one TOML file, overridden by flags, checked before anything is started.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::clock::source::ClockSource;
use tailwater_wire::limits::{
    FANOUT_BATCH_BYTES, FANOUT_BATCH_RECORDS, FRAME_META_BYTES_MAX, FRAME_PAYLOAD_BYTES_MAX,
};

/// Everything that can be set. Unknown keys are refused.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// Where topics and metadata live.
    pub data: PathBuf,
    /// Shards; one for each core without it. More than cores are for tests.
    pub shards: Option<u32>,
    /// Where shard 0 listens for clients; shard n listens n ports above.
    pub listen: SocketAddr,
    /// Where `/metrics`, `/healthz` and `/readyz` are served.
    pub admin: SocketAddr,
    /// Allow listeners beyond loopback without TLS and authentication.
    pub insecure_network: bool,
    /// Pin shard n to core n.
    pub pin_cores: bool,
    /// Spin so long before a shard parks, in microseconds: 0 shares the core, 50-100 suits a dedicated one.
    pub spin_before_park_us: u64,
    /// Client connections at most; one more is refused by name.
    pub connections_max: usize,
    /// Large requests that are on their way in, per shard, in bytes; one more is refused as busy.
    pub receive_bytes_max: usize,
    /// The log's settings.
    pub log: LogConfig,
    /// The fan-out engine's settings.
    pub fanout: FanoutConfig,
    /// The settings of what shards send each other.
    pub mesh: MeshConfig,
    /// Which clocks it runs by: the machine's, but for nodes inside a test.
    #[serde(skip)]
    pub clock: ClockSource,
}

/// Settings of the mesh between shards.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MeshConfig {
    /// Requests that one shard may have unanswered at another one; more wait at home.
    pub credits: usize,
}

impl Default for MeshConfig {
    fn default() -> MeshConfig {
        MeshConfig { credits: 256 }
    }
}

/// Settings of the partition logs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// The first segment of a partition, in bytes; each next one is twice as long.
    pub segment_bytes_first: u64,
    /// The longest segment, in bytes.
    pub segment_bytes_max: u64,
    /// Just-committed batches kept in memory per shard, in bytes.
    pub tail_cache_bytes: usize,
    /// Batches of producers that wait for their flush, per shard, in bytes; one more is refused as busy.
    pub waiting_bytes_max: usize,
}

/// Settings of the fan-out engine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FanoutConfig {
    /// Records of one slab at most.
    pub max_batch_records: usize,
    /// Bytes of one slab at most.
    pub max_batch_bytes: usize,
    /// How long a slab is topped up while a commit of its link is in flight, in milliseconds.
    pub linger_ms: u64,
    /// Memory for slabs in flight per shard, in bytes.
    pub memory_bytes: usize,
}

impl Default for NodeConfig {
    fn default() -> NodeConfig {
        let loopback = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        NodeConfig {
            data: PathBuf::from("tailwater-data"),
            shards: None,
            listen: loopback(7400),
            admin: loopback(7300),
            insecure_network: false,
            pin_cores: false,
            spin_before_park_us: 0,
            connections_max: 1_024,
            receive_bytes_max: 256 << 20,
            log: LogConfig::default(),
            fanout: FanoutConfig::default(),
            mesh: MeshConfig::default(),
            clock: ClockSource::System,
        }
    }
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig {
            segment_bytes_first: 1 << 20,
            segment_bytes_max: 64 << 20,
            tail_cache_bytes: 64 << 20,
            waiting_bytes_max: 256 << 20,
        }
    }
}

impl Default for FanoutConfig {
    fn default() -> FanoutConfig {
        FanoutConfig {
            max_batch_records: FANOUT_BATCH_RECORDS,
            max_batch_bytes: FANOUT_BATCH_BYTES,
            linger_ms: 25,
            memory_bytes: 256 << 20,
        }
    }
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("the configuration {} is wrong: {why}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        why: String,
    },
    /// A value that cannot be.
    #[error("{key} = {value}: {why}")]
    Value {
        /// The key.
        key: &'static str,
        /// What was given.
        value: String,
        /// Why not.
        why: &'static str,
    },
}

/// Shards of a node at most.
const SHARDS_MAX: u32 = 256;
/// `mesh.credits` at most: every shard has four places for each in its mailbox, times the shards.
const MESH_CREDITS_MAX: usize = 4_096;

/// Cores that this process may use.
fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32)
}

impl NodeConfig {
    /// How many shards run.
    #[must_use]
    pub fn shard_count(&self) -> u32 {
        self.shards.unwrap_or_else(|| cores().min(SHARDS_MAX))
    }

    /// The configuration of a file, or the defaults without one.
    ///
    /// # Errors
    /// [`ConfigError::Read`] or [`ConfigError::Parse`]; values are checked by [`NodeConfig::check`].
    pub fn load(path: Option<&Path>) -> Result<NodeConfig, ConfigError> {
        let Some(path) = path else {
            return Ok(NodeConfig::default());
        };
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        toml::from_str(&text).map_err(|e| ConfigError::Parse {
            path: path.to_owned(),
            why: e.to_string(),
        })
    }

    /// Checks all values, those of flags included.
    ///
    /// # Errors
    /// [`ConfigError::Value`], for the first one that cannot be.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key, value: &dyn ToString, why| {
            Err(ConfigError::Value {
                key,
                value: value.to_string(),
                why,
            })
        };
        let cores = cores();
        match self.shards {
            Some(shards) if shards == 0 || shards > SHARDS_MAX => {
                return wrong("shards", &shards, "1 to 256");
            }
            Some(shards) if self.pin_cores && shards > cores => {
                return wrong(
                    "shards",
                    &shards,
                    "more than there are cores to pin them to (pin_cores)",
                );
            }
            _ => {}
        }
        if self.mesh.credits == 0 || self.mesh.credits > MESH_CREDITS_MAX {
            return wrong("mesh.credits", &self.mesh.credits, "1 to 4096");
        }
        for (key, address) in [("listen", self.listen), ("admin", self.admin)] {
            if !address.ip().is_loopback() && !self.insecure_network {
                let why = "a listener beyond loopback needs TLS and authentication, which this version does not \
                           have; insecure_network = true opens it to everyone";
                return wrong(key, &address, why);
            }
        }
        let (first, admin) = (u32::from(self.listen.port()), u32::from(self.admin.port()));
        let same_host = self.listen.ip() == self.admin.ip()
            || self.listen.ip().is_unspecified()
            || self.admin.ip().is_unspecified();
        if first != 0 && admin != 0 && same_host && (first..first + self.shard_count()).contains(&admin) {
            let why = "one of the ports on which the shards listen, which begin with that of listen";
            return wrong("admin", &self.admin, why);
        }
        let log = &self.log;
        let whole_blocks = |bytes: u64| bytes.is_multiple_of(4096) && bytes >= 64 << 10;
        if !whole_blocks(log.segment_bytes_first) {
            return wrong(
                "log.segment_bytes_first",
                &log.segment_bytes_first,
                "a multiple of 4096, at least 65536",
            );
        }
        if !whole_blocks(log.segment_bytes_max) || log.segment_bytes_max < log.segment_bytes_first {
            return wrong(
                "log.segment_bytes_max",
                &log.segment_bytes_max,
                "a multiple of 4096, at least the first",
            );
        }
        let fanout = &self.fanout;
        if fanout.max_batch_records == 0 || fanout.max_batch_records > FANOUT_BATCH_RECORDS {
            return wrong("fanout.max_batch_records", &fanout.max_batch_records, "1 to 4096");
        }
        if fanout.max_batch_bytes < 4096 || fanout.max_batch_bytes > FANOUT_BATCH_BYTES {
            return wrong(
                "fanout.max_batch_bytes",
                &fanout.max_batch_bytes,
                "4096 to 4194304",
            );
        }
        if fanout.memory_bytes < fanout.max_batch_bytes {
            return wrong(
                "fanout.memory_bytes",
                &fanout.memory_bytes,
                "at least one slab, fanout.max_batch_bytes",
            );
        }
        if self.connections_max == 0 {
            return wrong("connections_max", &self.connections_max, "at least 1");
        }
        if self.receive_bytes_max < FRAME_META_BYTES_MAX + FRAME_PAYLOAD_BYTES_MAX {
            return wrong(
                "receive_bytes_max",
                &self.receive_bytes_max,
                "at least one request, 12648448",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_every_key_with_its_default() {
        let document = include_str!("../../docs/configuration.md");
        let block = document
            .split("```toml")
            .nth(1)
            .and_then(|rest| rest.split("```").next());
        let block = block.expect("a block of TOML");
        let config: NodeConfig = toml::from_str(block).expect("a configuration");
        assert_eq!(config, NodeConfig::default());
        let default = format!("{config:#?}");
        let keys = default
            .lines()
            .filter_map(|line| line.trim().split_once(": "))
            .map(|(key, _)| key)
            .filter(|key| *key != "clock");
        for key in keys {
            let is_there = [format!("{key} = "), format!("[{key}]")];
            let is_there = is_there.iter().any(|text| block.contains(text));
            assert!(is_there, "{key} is not in the document");
        }
    }

    #[test]
    fn a_listener_beyond_loopback_is_refused_unless_it_is_asked_for() {
        let mut config = NodeConfig {
            listen: "0.0.0.0:7400".parse().expect("address"),
            ..NodeConfig::default()
        };
        assert!(config.check().expect_err("refused").to_string().contains("TLS"));
        config.insecure_network = true;
        config.check().expect("asked for");
    }

    #[test]
    fn unknown_keys_and_odd_values_are_refused() {
        assert!(toml::from_str::<NodeConfig>("lisen = '127.0.0.1:1'").is_err());
        for text in [
            "shards = 0",
            "shards = 2\nadmin = \"127.0.0.1:7401\"\nlisten = \"127.0.0.1:7400\"",
            "shards = 100000\npin_cores = true",
            "receive_bytes_max = 1000000",
            "[mesh]\ncredits = 0",
            "[log]\nsegment_bytes_first = 5000",
            "[fanout]\nmax_batch_records = 0",
        ] {
            let config: NodeConfig = toml::from_str(text).expect(text);
            assert!(config.check().is_err(), "{text}");
        }
        NodeConfig::default().check().expect("the defaults are sound");
    }
}

//! The ports that a node listens on.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::StartError;
use crate::config::NodeConfig;

/// How long, and how often, a port that is in use is tried again: 10 s.
const BIND_AGAIN_EVERY: Duration = Duration::from_millis(50);
const BIND_AGAIN_TIMES: u32 = 200;

/// A listener for each shard: shard n listens n ports above the first, or all on ports that the system gives.
pub(super) fn listen(
    config: &NodeConfig,
    shards: u32,
) -> Result<Vec<(std::net::TcpListener, SocketAddr)>, StartError> {
    let address = |shard: u32| {
        let first = config.listen.port();
        let port = if first == 0 {
            Some(0)
        } else {
            first.checked_add(shard as u16)
        };
        let out_of_range = StartError::PortsExhausted { first, shards };
        port.map(|port| SocketAddr::new(config.listen.ip(), port))
            .ok_or(out_of_range)
    };
    (0..shards)
        .map(|shard| bind(address(shard)?, "clients"))
        .collect()
}

/// Listens on an address. A process that was killed holds its ports until the kernel has taken its rings apart, which
/// takes a moment: whoever restarts it at once is not turned away.
pub(super) fn bind(
    address: SocketAddr,
    purpose: &'static str,
) -> Result<(std::net::TcpListener, SocketAddr), StartError> {
    bind_pausing(address, purpose, std::thread::sleep)
}

/// [`bind`], with what passes the time between two attempts.
fn bind_pausing(
    address: SocketAddr,
    purpose: &'static str,
    mut pause: impl FnMut(Duration),
) -> Result<(std::net::TcpListener, SocketAddr), StartError> {
    let mut left = BIND_AGAIN_TIMES;
    loop {
        let bound = std::net::TcpListener::bind(address)
            .and_then(|listener| listener.local_addr().map(|address| (listener, address)));
        match bound {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && left > 0 => {
                if left == BIND_AGAIN_TIMES {
                    tracing::warn!(%address, purpose, "the port is in use; trying again, a process that was killed may still hold it");
                }
                left -= 1;
                pause(BIND_AGAIN_EVERY);
            }
            bound => {
                return bound.map_err(|source| StartError::Listen {
                    purpose,
                    address,
                    source,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another program's listener on a port of its own.
    fn taken() -> (std::net::TcpListener, SocketAddr) {
        let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = holder.local_addr().expect("an address");
        (holder, address)
    }

    #[test]
    fn a_port_in_use_is_tried_again_for_ten_seconds_and_refused_by_name() {
        let (_holder, address) = taken();
        let mut waited = Duration::ZERO;
        let refused = bind_pausing(address, "clients", |pause| waited += pause);
        let refused = refused.expect_err("the port is in use").to_string();
        assert_eq!(waited, Duration::from_secs(10));
        let said = format!("cannot listen on {address} for clients: ");
        assert!(
            refused.starts_with(&said) && refused.contains("in use"),
            "{refused}"
        );
    }

    #[test]
    fn a_port_that_becomes_free_within_ten_seconds_is_taken() {
        for free_after in [Duration::from_millis(50), Duration::from_secs(10)] {
            let (holder, address) = taken();
            let (mut holder, mut waited) = (Some(holder), Duration::ZERO);
            let bound = bind_pausing(address, "clients", |pause| {
                waited += pause;
                if waited >= free_after {
                    holder = None;
                }
            });
            let (_listener, bound) = bound.expect("the port is free by then");
            assert_eq!((bound, waited), (address, free_after));
        }
    }

    #[test]
    fn what_no_waiting_mends_is_refused_at_once() {
        // An address of nobody here (RFC 5737).
        let elsewhere = SocketAddr::from(([192, 0, 2, 1], 0));
        let refused = bind_pausing(elsewhere, "clients", |_| panic!("waited"));
        assert!(matches!(refused, Err(StartError::Listen { .. })));
    }
}

//! Hosts that are this machine, to which secrets may be sent without TLS.

use std::net::IpAddr;

/// Whether a host name means this machine.
pub fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

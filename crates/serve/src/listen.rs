//! Accepts connections up to a limit, serves them, and closes them when the server stops. When all slots are taken, a
//! new connection evicts another (`slots.rs`), so that silent or slow clients cannot block others. `routes.rs` has the
//! answers.

use crate::slots::Slots;
use crate::stall::StallTimeout;
use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Limits on the resources that clients use.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of connections; a further one evicts a silent or an old one.
    pub connections: usize,
    /// Maximum number of event streams; further ones receive status 503.
    pub streams: usize,
    /// Time limit for a request's head, for its body, and for an idle connection.
    pub request: Duration,
    /// Time limit for a client to read some of what was sent.
    pub stalled: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let [request, stalled] = [10, 20].map(Duration::from_secs);
        Self { connections: 128, streams: 32, request, stalled }
    }
}

/// Maximum size of a request's head.
const HEAD_BYTES: usize = 16 << 10;

/// Time to finish responses after the server was stopped.
const SHUTDOWN: Duration = Duration::from_secs(3);

/// Waits until the server stops.
pub(crate) async fn stopped(ending: &mut watch::Receiver<bool>) {
    // An error means that the sender was dropped: the server has stopped.
    let _ = ending.wait_for(|is_over| *is_over).await;
}

/// Serves until `ending` is true, then waits up to [`LAST_WORDS`] for responses to finish.
pub(crate) async fn serve(listener: TcpListener, router: Router, limits: Limits, mut ending: watch::Receiver<bool>) {
    let slots = Arc::new(Slots::new(limits.connections));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut ending) => break,
        };
        let Ok((stream, peer)) = accepted else {
            // Out of file descriptors, probably: retry when other connections have closed.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let slot = slots.take(peer.ip()).await;
        let (service, mut ending) = (TowerToHyperService::new(router.clone()), ending.clone());
        tokio::spawn(async move {
            let handle = slot.handle();
            let with_handle = service_fn(move |mut request: hyper::Request<Incoming>| {
                request.extensions_mut().insert(handle.clone());
                service.call(request)
            });
            let stream = TokioIo::new(StallTimeout::new(stream, limits.stalled));
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(limits.request).max_buf_size(HEAD_BYTES);
            let connection = builder.serve_connection(stream, with_handle);
            tokio::pin!(connection);
            // A connection's error concerns its client only.
            tokio::select! {
                _ = connection.as_mut() => {}
                () = slot.evicted() => {}
                () = stopped(&mut ending) => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(SHUTDOWN, slots.all_free()).await;
}

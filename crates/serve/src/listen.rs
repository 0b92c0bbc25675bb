//! Connections: accepted up to a limit, answered, and ended when the server ends. A new one takes the place of another if
//! all are taken (`places.rs`), so that silent or slow clients keep nobody out. Not here: what is answered (`routes.rs`).

use crate::impatient::Impatient;
use crate::places::Places;
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

/// How much of the machine clients may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at a time; a further one takes the place of a silent or an old one.
    pub connections: usize,
    /// Pages that are kept up to date at a time; others are told to come back.
    pub streams: usize,
    /// Time for a request's head to be whole, then for its body, and for a connection without a request to be closed.
    pub request: Duration,
    /// Time for a client to take something of what it was sent.
    pub stalled: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let [request, stalled] = [10, 20].map(Duration::from_secs);
        Self { connections: 128, streams: 32, request, stalled }
    }
}

/// Bytes of a request's head.
const HEAD_BYTES: usize = 16 << 10;

/// Time for answers that are on their way when the server ends.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Waits until the server ends.
pub(crate) async fn over(ending: &mut watch::Receiver<bool>) {
    // Where nobody can say so any more, it has ended.
    let _ = ending.wait_for(|is_over| *is_over).await;
}

/// Answers until `ending` says so, and then until what is on its way has arrived.
pub(crate) async fn answer(listener: TcpListener, router: Router, limits: Limits, mut ending: watch::Receiver<bool>) {
    let places = Arc::new(Places::new(limits.connections));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = over(&mut ending) => break,
        };
        let Ok((stream, peer)) = accepted else {
            // Who has no descriptor left now may have one soon.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let place = places.take(peer.ip()).await;
        let (service, mut ending) = (TowerToHyperService::new(router.clone()), ending.clone());
        tokio::spawn(async move {
            let seat = place.seat();
            let with_seat = service_fn(move |mut request: hyper::Request<Incoming>| {
                request.extensions_mut().insert(seat.clone());
                service.call(request)
            });
            let stream = TokioIo::new(Impatient::new(stream, limits.stalled));
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(limits.request).max_buf_size(HEAD_BYTES);
            let connection = builder.serve_connection(stream, with_seat);
            tokio::pin!(connection);
            // How a connection ended is its client's affair.
            tokio::select! {
                _ = connection.as_mut() => {}
                () = place.taken_away() => {}
                () = over(&mut ending) => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(LAST_WORDS, places.all_free()).await;
}

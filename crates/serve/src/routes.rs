//! The server's routes. Not here: access control (`guard.rs`), the JSON (`wire.rs`).

use crate::act::{ActError, ActionRequest, act, actions};
use crate::guard::guard;
use crate::map::map;
use crate::metrics::{Format, metrics};
use crate::poller::Snapshot;
use crate::shared::Shared;
use crate::stream::events;
use crate::wire::{Detail, Problem, curves, moments, problem};
use axum::extract::{Path, RawQuery, State};
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::Sse;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use plimsoll_orders::GiveError;
use plimsoll_telemetry::history;
use plimsoll_watch::RunView;
use serde_json::json;
use std::sync::Arc;

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/", get(|| file("text/html; charset=utf-8", include_str!("../page/index.html"))))
        .route("/app.js", get(|| file(SCRIPT, include_str!("../page/app.js"))))
        .route("/theme.js", get(|| file(SCRIPT, include_str!("../page/theme.js"))))
        .route("/charts.js", get(|| file(SCRIPT, include_str!("../page/charts.js"))))
        .route("/map.js", get(|| file(SCRIPT, include_str!("../page/map.js"))))
        .route("/app.css", get(|| file(STYLE, include_str!("../page/app.css"))))
        .route("/uplot.js", get(|| file(SCRIPT, include_str!("../page/vendor/uPlot.js"))))
        .route("/uplot.css", get(|| file(STYLE, include_str!("../page/vendor/uPlot.css"))))
        .route("/icon.svg", get(|| file("image/svg+xml", include_str!("../page/icon.svg"))))
        .route("/api/runs", get(runs))
        .route("/api/runs/{id}", get(run))
        .route("/api/runs/{id}/samples", get(samples))
        .route("/api/runs/{id}/plan", get(plan))
        .route("/api/runs/{id}/report", get(report))
        .route("/api/runs/{id}/order", post(order))
        .route("/api/machine", get(machine))
        .route("/api/events", get(follow))
        .route("/metrics", get(scrape))
        .route("/grafana.json", get(|| file(JSON, include_str!("../../../docs/grafana.json"))))
        .fallback(|| async { problem(StatusCode::NOT_FOUND, "not found") })
        .method_not_allowed_fallback(|| async { problem(StatusCode::METHOD_NOT_ALLOWED, "method not allowed") })
        .layer(middleware::from_fn_with_state(shared.clone(), guard))
        .with_state(shared)
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const JSON: &str = "application/json";

async fn file(kind: &'static str, contents: &'static str) -> Response {
    ([(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-cache")], contents).into_response()
}

fn found(snapshot: &Snapshot, id: &str) -> Result<Arc<RunView>, Problem> {
    let run = snapshot.run(id).map(|(run, _)| run.clone());
    run.ok_or_else(|| problem(StatusCode::NOT_FOUND, "no such run, or it is too old to be listed"))
}

async fn runs(State(shared): State<Arc<Shared>>) -> Result<Response, Problem> {
    let snapshot = shared.poller.latest().await?;
    Ok(([(CONTENT_TYPE, JSON)], snapshot.list.0.to_string()).into_response())
}

async fn run(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Result<Response, Problem> {
    let run = found(&*shared.poller.latest().await?, &id)?;
    Ok(Json(json!({ "run": Detail::of(&run, actions(&run)), "curves": curves(&run, None) })).into_response())
}

async fn machine(State(shared): State<Arc<Shared>>) -> Result<Response, Problem> {
    let snapshot = shared.poller.latest().await?;
    let traces = snapshot.machine.cards.iter().map(|card| {
        json!({ "temperature_c": card.temperature_c, "power_w": card.power_w, "busy_percent": card.busy_percent })
    });
    let traces = traces.collect::<Vec<_>>();
    let now = serde_json::value::RawValue::from_string(snapshot.machine_json.0.to_string());
    Ok(Json(json!({ "now": now.ok(), "cards": traces, "cpu_percent": snapshot.machine.cpu_percent })).into_response())
}

/// Metrics for Prometheus and compatible tools.
async fn scrape(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Result<Response, Problem> {
    let snapshot = shared.poller.latest().await?;
    let format = Format::accepted(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default());
    let text = metrics(&snapshot.machine, snapshot.runs.iter().map(|(run, _)| &**run), &shared.host, format);
    Ok(([(CONTENT_TYPE, format.content_type())], text).into_response())
}

/// Runs a closure that reads files on a blocking thread.
async fn read<T: Send + 'static>(
    shared: &Shared,
    read: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, Problem> {
    let place = shared.readers.clone().acquire_owned().await.expect("the semaphore is never closed");
    let done = tokio::task::spawn_blocking(move || {
        let _place = place;
        read()
    });
    match done.await {
        Ok(Ok(read)) => Ok(read),
        Ok(Err(why)) => Err(problem(StatusCode::NOT_FOUND, &why)),
        Err(_) => Err(problem(StatusCode::INTERNAL_SERVER_ERROR, "the run's files cannot be read")),
    }
}

async fn samples(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Result<Response, Problem> {
    let run = found(&*shared.poller.latest().await?, &id)?;
    let read_samples = move || {
        let samples = history(&run.folder, f64::NEG_INFINITY..f64::INFINITY).map_err(|error| error.to_string())?;
        Ok(moments(&samples))
    };
    Ok(Json(read(&shared, read_samples).await?).into_response())
}

async fn plan(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Result<Response, Problem> {
    let run = found(&*shared.poller.latest().await?, &id)?;
    let read_map = move || map(&run.folder).map_err(|error| format!("no plan: {error}"));
    Ok(Json(read(&shared, read_map).await?).into_response())
}

async fn report(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Result<Response, Problem> {
    let run = found(&*shared.poller.latest().await?, &id)?;
    let theirs = shared.clone();
    let page = read(&shared, move || (theirs.report)(&run.folder)).await?;
    // A report has inline styles and no script.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; \
        frame-ancestors 'none'; sandbox";
    let headers = [(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, policy)];
    Ok((headers, page).into_response())
}

async fn order(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: String,
) -> Result<Response, Problem> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.starts_with(JSON) {
        return Err(problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, "an order must be JSON"));
    }
    let request: ActionRequest = serde_json::from_str(&body).map_err(|_| {
        problem(
            StatusCode::BAD_REQUEST,
            "an order is `{\"action\": \"pause\"}`, `resume` or `stop`, or `budget` with a size",
        )
    })?;
    let run = found(&*shared.poller.latest().await?, &id)?;
    let done = tokio::task::spawn_blocking(move || act(&run, &request)).await;
    shared.poller.wake();
    match done {
        Ok(Ok(said)) => Ok((StatusCode::ACCEPTED, Json(json!({ "said": said }))).into_response()),
        Ok(Err(error)) => {
            let status = match &error {
                ActError::BadBudget(_) => StatusCode::BAD_REQUEST,
                ActError::Order(GiveError::Io(_)) => StatusCode::INTERNAL_SERVER_ERROR,
                ActError::Unavailable(_) | ActError::Order(_) => StatusCode::CONFLICT,
            };
            Err(problem(status, &error.to_string()))
        }
        Err(_) => Err(problem(StatusCode::INTERNAL_SERVER_ERROR, "the order failed")),
    }
}

async fn follow(
    State(shared): State<Arc<Shared>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Ok(place) = shared.streams.clone().try_acquire_owned() else {
        return Err(problem(StatusCode::SERVICE_UNAVAILABLE, "too many pages are open; close one and retry"));
    };
    let run = query.as_deref().and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("run=")));
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    Ok(Sse::new(events(shared.clone(), run.map(str::to_owned), last, place)).into_response())
}

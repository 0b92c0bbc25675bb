//! An MLflow server that responds, refuses, disconnects, and echoes requests.

use crate::{LONG, evaluated, session, settings, started, step};
use plimsoll_secrets::Secrets;
use plimsoll_telemetry::{Event, Sink};
use plimsoll_trackers::{TrackError, Tracker, TrackerReport, Trackers};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

type Requests = Arc<Mutex<Vec<(String, String, Value)>>>;

/// Responds to each request with `answer`'s status and body; `None` closes the connection.
fn serve(answer: impl Fn(&str, usize) -> Option<(u16, Value)> + Send + 'static) -> (SocketAddr, Requests) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (address, seen) = (listener.local_addr().expect("an address"), Requests::default());
    let requests = seen.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = connection(&stream, &answer, &requests);
        }
    });
    (address, seen)
}

fn connection(
    mut stream: &TcpStream,
    answer: &impl Fn(&str, usize) -> Option<(u16, Value)>,
    seen: &Requests,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
            if line == "\r\n" {
                break;
            }
            head += &line;
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let method = head.split(' ').nth(1).expect("a path").trim_start_matches("/api/2.0/mlflow/").to_owned();
        let count = {
            let mut seen = seen.lock().expect("no panic");
            seen.push((method.clone(), head, serde_json::from_slice(&body).expect("JSON")));
            seen.len()
        };
        let Some((status, body)) = answer(&method, count) else { return Ok(()) };
        let body = body.to_string();
        write!(
            stream,
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )?;
    }
}

/// The normal responses of MLflow's server. Source: its REST API.
fn usual(method: &str, knows_run: bool) -> (u16, Value) {
    match method {
        "runs/update" if !knows_run => {
            (404, json!({ "error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no such run" }))
        }
        "runs/update" => (200, json!({ "run_info": { "run_id": "cafe01" } })),
        "experiments/search" => (200, json!({})),
        "experiments/create" => (200, json!({ "experiment_id": "7" })),
        "runs/create" => (200, json!({ "run": { "info": { "run_id": "cafe01" } } })),
        _ => (200, json!({})),
    }
}

fn secrets(pairs: &[(&str, &str)]) -> Secrets {
    let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), OsString::from(value))).collect::<Vec<_>>();
    let of = |name: &str| pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    Secrets::load(of, None, None).expect("secrets")
}

fn logged(folder: &Path, secrets: &Secrets, events: &[Event]) -> TrackerReport {
    let mut settings = settings(folder);
    settings.trackers = vec![Tracker::Mlflow];
    let mut trackers = Trackers::start(settings, secrets).expect("a thread");
    events.iter().for_each(|event| trackers.take(event));
    trackers.finish(LONG).remove(0)
}

#[test]
fn a_run_is_created_logged_and_ended_and_a_resumed_session_continues_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let known = Arc::new(Mutex::new(false));
    let knows = known.clone();
    let (address, seen) = serve(move |method, _| {
        let knows_run = std::mem::replace(&mut *knows.lock().expect("no panic"), true);
        Some(usual(method, knows_run))
    });
    let secrets =
        secrets(&[("MLFLOW_TRACKING_URI", &format!("http://{address}/")), ("MLFLOW_TRACKING_TOKEN", "CANARY")]);
    let events =
        [started(1), step(1, f64::NAN), evaluated(1, f64::INFINITY), Event::Finished { step: 1, seconds: 1.0 }];
    let report = logged(folder.path(), &secrets, &events);
    assert_eq!((report.written, report.lost, report.last_error), (2, 0, None));
    let requests = std::mem::take(&mut *seen.lock().expect("no panic"));
    assert!(requests.iter().all(|(_, head, _)| head.contains("authorization: Bearer CANARY\r\n")));
    let run = requests.iter().find(|(method, ..)| method == "runs/create").expect("a run is made");
    assert_eq!((&run.2["experiment_id"], &run.2["run_name"]), (&json!("7"), &json!("nano-1")));
    let batches = requests.iter().filter(|(method, ..)| method == "runs/log-batch").map(|(.., body)| body);
    assert!(batches.clone().all(|body| body["run_id"] == "cafe01"));
    let metrics = batches.clone().flat_map(|body| body["metrics"].as_array().cloned().unwrap_or_default());
    let value = |key: &str| metrics.clone().find(|metric| metric["key"] == key).map(|metric| metric["value"].clone());
    assert_eq!((value("train/loss"), value("eval/loss")), (Some(json!("NaN")), Some(json!("Infinity"))));
    assert!(
        batches
            .flat_map(|body| body["params"].as_array().cloned().unwrap_or_default())
            .any(|param| param["key"] == "seed")
    );
    let end = requests.last().expect("an end");
    assert_eq!((&*end.0, &end.2["status"]), ("runs/update", &json!("FINISHED")));
    logged(folder.path(), &secrets, &[started(2), step(2, 1.0)]);
    let requests = seen.lock().expect("no panic");
    assert!(!requests.iter().any(|(method, ..)| method == "runs/create"));
    assert!(requests.iter().all(|(.., body)| body["run_id"] == "cafe01"));
}

/// As from a login page, or from a proxy that responds for another server.
#[test]
fn a_response_that_is_not_mlflows_is_an_error() {
    let events = [started(1), step(1, 1.0), Event::Finished { step: 1, seconds: 1.0 }];
    let page = json!("<html>Please log in</html>");
    for (only, answer) in [("", page.clone()), ("runs/log-batch", page), ("runs/update", json!({})), ("", json!([]))] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (address, _) = serve(move |method, _| {
            Some(if method.starts_with(only) { (200, answer.clone()) } else { usual(method, true) })
        });
        let secrets = secrets(&[("MLFLOW_TRACKING_URI", &format!("http://{address}"))]);
        let report = logged(folder.path(), &secrets, &events);
        assert_eq!((report.written, report.lost), (0, 1), "{only}: {report:?}");
        let error = report.last_error.unwrap_or_default();
        assert!(error.contains("is not MLflow's; check the address"), "{error}");
    }
}

#[test]
fn refused_logs_are_retried() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // The first responses are invalid; then the server is busy.
    let (address, seen) = serve(|method, count| match count {
        1 => None,
        5 => Some((429, json!({ "message": "too many" }))),
        _ => Some(usual(method, true)),
    });
    let secrets = secrets(&[("MLFLOW_TRACKING_URI", &format!("http://{address}"))]);
    let report = logged(folder.path(), &secrets, &[started(1), step(1, 1.0), step(2, 2.0)]);
    assert_eq!((report.written, report.lost, report.unwritten), (2, 0, 0), "{report:?}");
    assert!(report.last_error.is_some());
    let seen = seen.lock().expect("no panic");
    let metrics = seen.iter().filter(|(method, _, body)| method == "runs/log-batch" && body["metrics"].is_array());
    assert!(metrics.count() >= 1);
}

#[test]
fn a_server_that_echoes_requests_leaks_no_secret() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (address, _) = serve(|_, _| Some((403, json!({ "message": "Bearer CANARY-of-the-token is not allowed" }))));
    let secrets = secrets(&[
        ("MLFLOW_TRACKING_URI", &format!("http://{address}")),
        ("MLFLOW_TRACKING_TOKEN", "CANARY-of-the-token"),
    ]);
    let report = logged(folder.path(), &secrets, &[started(1), step(1, 1.0)]);
    let error = report.last_error.clone().expect("it was refused");
    assert!(error.contains("status 403") && !format!("{report:?}").contains("CANARY"), "{error}");
    assert_eq!((report.written, report.lost), (0, 1));
}

#[test]
fn unusable_addresses_are_refused_before_any_file_is_created() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (uri, token, is_refused) in [
        ("sqlite:///CANARY.db", "", true),
        ("databricks", "", true),
        ("http://mlflow.example:5000", "", false),
        ("http://mlflow.example:5000", "CANARY", true),
        ("https://mlflow.example", "CANARY", false),
        ("http://me:CANARY@mlflow.example", "", true),
        ("http://", "", true),
        ("mlruns", "", false),
        ("file:///tmp/mlruns", "", false),
    ] {
        let secrets = secrets(&[("MLFLOW_TRACKING_URI", uri), ("MLFLOW_TRACKING_TOKEN", token)]);
        assert_eq!(Trackers::check(&[Tracker::Mlflow], &secrets).is_err(), is_refused, "{uri}");
        assert!(Trackers::check(&[Tracker::Csv], &secrets).is_ok());
        let started = Trackers::start(settings(folder.path()), &secrets);
        match started {
            Err(error @ TrackError::Mlflow { .. }) => {
                assert!(
                    is_refused && !error.to_string().contains("CANARY") && !format!("{error:?}").contains("CANARY"),
                    "{uri}"
                );
            }
            Err(error) => panic!("{error}"),
            Ok(_) => assert!(!is_refused, "{uri}"),
        }
    }
    assert!(!folder.path().join("logs").exists());
    drop(session(&settings(folder.path()), &[]));
    assert!(!folder.path().join("logs").exists(), "a run that never began leaves no files");
}

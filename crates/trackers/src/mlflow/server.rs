//! An MLflow server, through its REST API. The API can't delete values, so values of repeated steps are added to the
//! old ones.
//! Source: MLflow's "REST API".

use super::{milliseconds, params, status};
use crate::row::Row;
use crate::run_logs::Ids;
use crate::writer::{Begin, End, WriteError, Writer};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use plimsoll_files::Disk;
use plimsoll_secrets::{Secret, Secrets, is_loopback};
use serde_json::{Value, json};
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use ureq::Agent;
use ureq::http::uri::Uri;

/// Timeouts of a whole request, and of connecting.
const TIMEOUTS: [Duration; 2] = [Duration::from_secs(15), Duration::from_secs(5)];

/// Maximum size of a response that is read.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Maximum length of a quote from a response, in characters.
const QUOTE_MAX: usize = 200;

/// Maximum metrics per request.
const METRICS_MAX: usize = 1000;

/// Maximum parameters per request.
const PARAMS_MAX: usize = 100;

/// A server, with the credentials for it.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    url: Secret,
    /// The value of the `Authorization` header.
    authorization: Option<Secret>,
    is_encrypted: bool,
}

impl Address {
    /// Errors: why it can't be used, without quoting it. Never sends secrets to other machines without TLS.
    pub(crate) fn new(url: &str, secrets: &Secrets) -> Result<Self, &'static str> {
        let uri = url.parse::<Uri>().map_err(|_| "is not a URL such as https://host:5000")?;
        let host = uri.host().ok_or("has no host; write it as https://host:5000")?;
        let is_encrypted = uri.scheme_str() == Some("https");
        let of = |variable: &str| secrets.get(variable).map(Secret::expose);
        let authorization = match (of("MLFLOW_TRACKING_TOKEN"), of("MLFLOW_TRACKING_USERNAME")) {
            (Some(token), _) => Some(format!("Bearer {token}")),
            (None, Some(user)) => {
                let password = of("MLFLOW_TRACKING_PASSWORD").unwrap_or_default();
                Some(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
            }
            (None, None) => None,
        };
        let has_secret = authorization.is_some() || uri.authority().is_some_and(|part| part.as_str().contains('@'));
        if has_secret && !is_encrypted && !is_loopback(host) {
            return Err("has no TLS, so others could read the password; use https://");
        }
        let url = Secret::new(url.trim_end_matches('/'));
        Ok(Self { url, authorization: authorization.map(Secret::new), is_encrypted })
    }
}

pub(crate) struct Server {
    agent: Agent,
    address: Address,
    run: String,
}

impl Server {
    pub(crate) fn open(disk: &Disk, address: &Address, begin: &Begin) -> Result<Self, WriteError> {
        let logs = begin.logs()?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(TIMEOUTS[0]))
            .timeout_connect(Some(TIMEOUTS[1]))
            .timeout_resolve(Some(TIMEOUTS[1]))
            .user_agent(concat!("plimsoll/", env!("CARGO_PKG_VERSION")));
        // Without TLS, a proxy would see the whole request.
        let config = if address.is_encrypted { config } else { config.proxy(None) };
        let mut server =
            Self { agent: config.build().new_agent(), address: address.clone(), run: logs.ids.mlflow.clone() };
        // Resumes a known run. It is unknown if it was in a folder before, or on another server.
        let going_on = json!({ "run_id": server.run, "status": "RUNNING" });
        if server.call("runs/update", &going_on)?.is_none() {
            server.run = server.create(begin)?;
            let ids = Ids { mlflow: server.run.clone(), ..logs.ids.clone() };
            logs.keep(disk, &ids)?;
        }
        let all = params(begin).map(|(key, value)| json!({ "key": key, "value": value })).collect::<Vec<_>>();
        for some in all.chunks(PARAMS_MAX) {
            // The server can't change parameters that already have other values; that must not stop the run.
            drop(server.call("runs/log-batch", &json!({ "run_id": server.run, "params": some })));
        }
        Ok(server)
    }

    fn create(&self, begin: &Begin) -> Result<String, WriteError> {
        let name = &begin.project;
        let experiment = match self.find(name)? {
            Some(id) => id,
            None => match self.call("experiments/create", &json!({ "name": name })) {
                Ok(made) => text(&made.unwrap_or_default(), "experiments/create", "/experiment_id")?,
                // Another run may have created it meanwhile.
                Err(error) => self.find(name)?.ok_or(error)?,
            },
        };
        let tag = |key: &str, value: &str| json!({ "key": key, "value": value });
        let run = json!({
            "experiment_id": experiment,
            "run_name": begin.name,
            "start_time": milliseconds(begin.time_s),
            "tags": [tag("mlflow.source.name", "plimsoll"), tag("mlflow.source.type", "LOCAL"), tag("mlflow.runName", &begin.name)],
        });
        let made = self.call("runs/create", &run)?.ok_or_else(|| odd("runs/create"))?;
        text(&made, "runs/create", "/run/info/run_id")
    }

    /// The id of the experiment with this name.
    fn find(&self, name: &str) -> Result<Option<String>, WriteError> {
        let query = json!({ "filter": format!("name = '{}'", name.replace('\'', "")), "max_results": 1 });
        let found = self.call("experiments/search", &query)?;
        Ok(found.and_then(|found| Some(found.pointer("/experiments/0/experiment_id")?.as_str()?.to_owned())))
    }

    /// The server's response; `None` if the requested object does not exist.
    fn call(&self, method: &str, body: &Value) -> Result<Option<Value>, WriteError> {
        let url = format!("{}/api/2.0/mlflow/{method}", self.address.url.expose());
        let mut request = self.agent.post(&url).content_type("application/json");
        if let Some(authorization) = &self.address.authorization {
            request = request.header("authorization", authorization.expose());
        }
        // The library's errors quote addresses.
        let mut response = request.send(body.to_string().as_bytes()).map_err(|error| WriteError {
            text: format!("the server can't be reached: {}", kind_of(&error)),
            is_passing: !matches!(error, ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::Tls(_)),
        })?;
        let status = response.status().as_u16();
        let mut answer = Vec::new();
        let read = response.body_mut().as_reader().take(ANSWER_BYTES_MAX).read_to_end(&mut answer);
        let answer = serde_json::from_slice::<Value>(&answer).unwrap_or_default();
        // Every response is an object; the one to an update contains the run. Login pages and proxies also respond with
        // status 200.
        let is_mlflow = answer.is_object() && (method != "runs/update" || answer["run_info"].is_object());
        match status {
            200..=299 if read.is_err() => Err(WriteError { text: "the response was cut off".into(), is_passing: true }),
            200..=299 if is_mlflow => Ok(Some(answer)),
            200..=299 => Err(odd(method)),
            _ if answer.pointer("/error_code").and_then(Value::as_str) == Some("RESOURCE_DOES_NOT_EXIST") => Ok(None),
            _ => {
                let message = answer.pointer("/message").and_then(Value::as_str).unwrap_or_default();
                let message = message.chars().take(QUOTE_MAX).collect::<String>();
                let text = format!(
                    "the server returned status {status}{}{message}",
                    if message.is_empty() { "" } else { ": " }
                );
                Err(WriteError { text, is_passing: matches!(status, 408 | 425 | 429 | 500..=599) })
            }
        }
    }
}

fn kind_of(error: &ureq::Error) -> &'static str {
    match error {
        ureq::Error::Timeout(_) => "timed out",
        ureq::Error::HostNotFound => "host not found; check the network",
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::Pem(_) => "TLS failed; check the certificate",
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => "the address or the password has invalid characters",
        _ => "the connection failed",
    }
}

fn text(answer: &Value, method: &str, pointer: &str) -> Result<String, WriteError> {
    let found = answer.pointer(pointer).and_then(Value::as_str).filter(|id| !id.is_empty());
    found.map(str::to_owned).ok_or_else(|| odd(method))
}

fn odd(what: &str) -> WriteError {
    let text = format!("the response to {what} is not MLflow's; check the address, and whether a login is needed");
    WriteError { text, is_passing: false }
}

/// A number in the JSON format of protocol buffers.
fn number(value: f64) -> Value {
    match value {
        value if value.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        value => value.into(),
    }
}

impl Writer for Server {
    fn write(&mut self, rows: &[Arc<Row>]) -> Result<(), WriteError> {
        let metrics = rows.iter().flat_map(|row| {
            row.values.iter().map(|(key, value)| {
                let time = milliseconds(row.time_s);
                json!({ "key": key, "value": number(*value), "timestamp": time, "step": row.step })
            })
        });
        for some in metrics.collect::<Vec<_>>().chunks(METRICS_MAX) {
            self.call("runs/log-batch", &json!({ "run_id": self.run, "metrics": some }))?
                .ok_or_else(|| WriteError { text: "the server no longer knows the run".into(), is_passing: false })?;
        }
        Ok(())
    }

    fn end(&mut self, end: End) -> Result<(), WriteError> {
        let body = json!({ "run_id": self.run, "status": status(end.status).0, "end_time": milliseconds(end.time_s) });
        self.call("runs/update", &body).map(drop)
    }
}

//! Posts JSON to a URL that may be a secret as a whole. Errors have their own wording, since the library's errors quote
//! URLs. Redirects are not followed: each message is meant for one server.

use crate::send_error::{Retry, SendError};
use crate::service::Service;
use crate::settings::Timing;
use crate::words::shortened;
use plimsoll_secrets::{Secret, is_loopback, retry_after};
use serde::Serialize;
use serde_json::Value;
use std::io::Read;
use std::time::{Duration, SystemTime};
use ureq::http::Response;
use ureq::http::uri::Uri;
use ureq::{Agent, Body};

/// Maximum number of bytes read of a response. Services that quote the message send some tens of KiB.
const RESPONSE_BYTES_MAX: u64 = 1 << 16;

/// Maximum number of characters quoted from a response.
const QUOTE_MAX: usize = 200;

/// A checked URL.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    url: Secret,
    is_encrypted: bool,
}

impl Address {
    /// Errors: why the URL cannot be used, without quoting it. Without TLS, only loopback is allowed, since other
    /// machines on the path could read the secret.
    pub(crate) fn new(url: &Secret) -> Result<Self, &'static str> {
        let uri = url.expose().parse::<Uri>().map_err(|_| "is not a URL such as https://host/path")?;
        let host = uri.host().ok_or("has no host; write it as https://host/path")?;
        let is_encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") if is_loopback(host) => false,
            Some("http") => return Err("does not use TLS, so others could read it; use https://"),
            _ => return Err("is not a URL such as https://host/path"),
        };
        Ok(Self { url: url.clone(), is_encrypted })
    }
}

/// Posts JSON to one URL.
pub(crate) struct Poster {
    agent: Agent,
    address: Address,
    token: Option<Secret>,
}

impl Poster {
    /// The token is sent as `Authorization: Bearer`.
    pub(crate) fn new(address: Address, token: Option<Secret>, timing: &Timing) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(timing.connect))
            .timeout_connect(Some(timing.connect))
            .timeout_global(Some(timing.total))
            // Connections that were idle for minutes are often closed.
            .max_idle_connections(0)
            .user_agent(concat!("plimsoll/", env!("CARGO_PKG_VERSION")));
        // Unless it tunnels TLS, a proxy sees the whole URL.
        let config = if address.is_encrypted { config } else { config.proxy(None) };
        Self { agent: config.build().new_agent(), address, token }
    }

    /// Posts a value to a server of any kind. Only the status counts; the response body is not read.
    pub(crate) fn post(&self, value: &impl Serialize) -> Result<(), SendError> {
        self.request(value).map(drop)
    }

    /// Posts a value to a service, and checks its response: login pages and proxies also return status 200. An
    /// incomplete response is not judged, since a retry could send the message twice.
    pub(crate) fn post_to(
        &self,
        service: Service,
        value: &impl Serialize,
        is_accepted: impl Fn(&str) -> bool,
    ) -> Result<(), SendError> {
        let mut response = self.request(value)?;
        let mut answer = Vec::new();
        let mut body = response.body_mut().as_reader().take(RESPONSE_BYTES_MAX + 1);
        let is_whole = body.read_to_end(&mut answer).is_ok() && answer.len() as u64 <= RESPONSE_BYTES_MAX;
        if !is_whole || is_accepted(&String::from_utf8_lossy(&answer)) {
            return Ok(());
        }
        let status = response.status().as_u16();
        Err(SendError::never(format!(
            "the server returned status {status}, but not a response of {service}; check the URL, and whether it requires a login"
        )))
    }

    /// The response to a value, if its status means success.
    fn request(&self, value: &impl Serialize) -> Result<Response<Body>, SendError> {
        let body = serde_json::to_vec(value).map_err(|_| SendError::never("the message cannot be encoded as JSON"))?;
        let mut request = self.agent.post(self.address.url.expose()).content_type("application/json");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {}", token.expose()));
        }
        let mut response = request.send(&body[..]).map_err(|error| in_words(&error))?;
        match response.status().as_u16() {
            200..=299 => Ok(response),
            status => Err(refusal(status, &mut response)),
        }
    }
}

fn refusal(status: u16, response: &mut Response<Body>) -> SendError {
    let header = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
    let asked = header.and_then(|value| retry_after(value, SystemTime::now()));
    let mut answer = Vec::new();
    // A response that cannot be read is not quoted; the status is enough.
    let _ = response.body_mut().as_reader().take(RESPONSE_BYTES_MAX).read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let json = serde_json::from_str::<Value>(&answer).unwrap_or_default();
    let said = ["/description", "/message", "/error"].iter().find_map(|key| json.pointer(key)?.as_str());
    let said = said.or(Some(answer.as_str()).filter(|text| !text.trim_start().starts_with('<'))).unwrap_or_default();
    let text = match shortened(said.trim(), QUOTE_MAX) {
        said if said.is_empty() => format!("the server returned status {status}"),
        said => format!("the server returned status {status}: {said}"),
    };
    match status {
        300..=399 => SendError::never(format!(
            "the server redirects (status {status}), and redirects are not followed; use the final URL"
        )),
        408 | 425 | 429 | 500..=599 => {
            // Telegram and Discord put it in the body. Sources: Telegram, "ResponseParameters"; Discord, "Rate Limits".
            let in_body =
                ["/parameters/retry_after", "/retry_after"].iter().find_map(|key| json.pointer(key)?.as_f64());
            let in_body = in_body.filter(|n| (0.0..1e6).contains(n)).map(Duration::from_secs_f64);
            let retry = asked.or(in_body).map_or(Retry::Later, Retry::After);
            SendError { text, retry }
        }
        _ => SendError::never(text),
    }
}

fn in_words(error: &ureq::Error) -> SendError {
    match error {
        ureq::Error::Timeout(_) => SendError::later("the server did not respond in time"),
        ureq::Error::HostNotFound => {
            SendError::later("the server's host name was not found; check the name and the network")
        }
        // rustls reports its errors through the connection's.
        ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            SendError::never("TLS handshake failed; check the server's certificate")
        }
        ureq::Error::Io(error) => SendError::later(format!("the connection failed: {}", error.kind())),
        ureq::Error::ConnectionFailed => SendError::later("the server is not reachable"),
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::Pem(_) => {
            SendError::never("TLS handshake failed; check the server's certificate")
        }
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => {
            SendError::never("the URL or the token contains invalid characters")
        }
        ureq::Error::Protocol(_) => SendError::later("the server's response is not valid HTTP"),
        _ => SendError::later("the request failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_tls_only_loopback_is_allowed() {
        for (url, works) in [
            ("https://hooks.example/CANARY", true),
            ("http://127.0.0.1:80/CANARY", true),
            ("http://localhost/CANARY", true),
            ("http://[::1]:8080/CANARY", true),
            ("http://hooks.example/CANARY", false),
            ("http://127.0.0.1.hooks.example/CANARY", false),
            ("http://localhost@hooks.example/CANARY", false),
            ("ftp://localhost/CANARY", false),
            ("/CANARY", false),
            ("CANARY", false),
            ("https://a b/CANARY", false),
        ] {
            let address = Address::new(&Secret::new(url));
            assert_eq!(address.is_ok(), works, "{url}");
            assert!(!format!("{address:?}").contains("CANARY"));
        }
    }
}

//! Access control: a client needs the token, sent in the link, a cookie or a header. Requests that pages of other sites
//! make a browser send are refused.
//!
//! - A page of another site cannot read answers (no CORS), and its browser sends no cookie (SameSite=Strict).
//! - `Host` must be an address or a known name: a foreign name that was rebound to this address is refused.
//! - A request that changes something needs the token in a header, or this server's own origin.

use crate::shared::{BODY_BYTES, Shared};
use crate::slots::SlotHandle;
use crate::wire::{Problem, problem};
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HOST, ORIGIN, REFERRER_POLICY,
    SET_COOKIE, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Delay before a wrong token is answered, which slows down guessing.
const WRONG_TOKEN_DELAY: Duration = Duration::from_millis(500);

/// Seconds that a browser keeps the cookie: a month.
const COOKIE_S: u32 = 30 * 86_400;

/// Content security policy of the page: load files of this server, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Content security policy of pages without scripts and style sheets.
const PLAIN_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'self'; \
    frame-ancestors 'none'";

/// Checks a request, and adds security headers to every response.
pub(crate) async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let mut response = match check(&shared, &request) {
        Ok(()) => match read_body(request, shared.patience).await {
            Ok(request) => next.run(request).await,
            Err(problem) => problem.into_response(),
        },
        Err(Rejection::Immediate(response)) => *response,
        Err(Rejection::Delayed(response)) => {
            tokio::time::sleep(WRONG_TOKEN_DELAY).await;
            *response
        }
    };
    let headers = response.headers_mut();
    let fixed: [(HeaderName, &'static str); 6] = [
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(POLICY));
    response
}

/// Reads the whole body, then marks the connection as authorized. Errors: the body is too long or too slow.
async fn read_body(request: Request, patience: Duration) -> Result<Request, Problem> {
    let (parts, body) = request.into_parts();
    let bytes = match tokio::time::timeout(patience, to_bytes(body, BODY_BYTES)).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => return Err(problem(StatusCode::PAYLOAD_TOO_LARGE, "the request body is too long or incomplete")),
        Err(_) => return Err(problem(StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time")),
    };
    if let Some(handle) = parts.extensions.get::<SlotHandle>() {
        handle.authorize();
    }
    Ok(Request::from_parts(parts, bytes.into()))
}

/// Why a request is refused.
enum Rejection {
    Immediate(Box<Response>),
    /// The client sent a wrong token: delay the response.
    Delayed(Box<Response>),
}

fn check(shared: &Shared, request: &Request) -> Result<(), Rejection> {
    let answer = |response: Response| Err(Rejection::Immediate(Box::new(response)));
    let headers = request.headers();
    let host = single_value(headers, HOST);
    if !host.is_some_and(|host| is_own_name(host, &shared.hosts)) {
        let message = "unknown Host header; use the IP address, or allow this name when starting the server";
        return answer(problem(StatusCode::MISDIRECTED_REQUEST, message).into_response());
    }
    let is_page = request.uri().path() == "/";
    if let Some(token) = is_page.then(|| token_of(request.uri().query()?)).flatten() {
        return Err(match shared.verifier.accepts_token(token) {
            true => Rejection::Immediate(Box::new(set_cookie(shared))),
            false => Rejection::Delayed(Box::new(token_page("Wrong token."))),
        });
    }
    let bearer = single_value(headers, AUTHORIZATION).and_then(|value| value.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
    if let Some(token) = bearer {
        return match shared.verifier.accepts_token(token) {
            true => Ok(()),
            false => Err(Rejection::Delayed(Box::new(unauthorized()))),
        };
    }
    if !cookies(headers, &shared.cookie_name).any(|cookie| shared.verifier.accepts_cookie(cookie)) {
        return answer(if is_page { token_page("") } else { unauthorized() });
    }
    let is_harmless = [Method::GET, Method::HEAD].contains(request.method());
    // A browser sends the origin with every POST.
    let origin =
        single_value(headers, ORIGIN).and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
    match is_harmless || (origin.is_some() && origin == host) {
        true => Ok(()),
        false => answer(
            problem(StatusCode::FORBIDDEN, "orders need the token in a header, or must come from this server's page")
                .into_response(),
        ),
    }
}

fn single_value(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    // A repeated header may be an attempt to make two parsers disagree.
    values.next().filter(|_| values.next().is_none())?.to_str().ok()
}

/// Whether `host` names this server: an IP address, which DNS rebinding cannot fake, `localhost`, or an allowed name.
fn is_own_name(host: &str, allowed: &[String]) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && !port.contains(']') => (name, port),
        _ => (host, "0"),
    };
    let is_address = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(name) => name.parse::<std::net::Ipv6Addr>().is_ok(),
        None => matches!(name.parse(), Ok(IpAddr::V4(_))),
    };
    let is_name = name.eq_ignore_ascii_case("localhost") || allowed.iter().any(|own| own.eq_ignore_ascii_case(name));
    port.parse::<u16>().is_ok() && (is_address || is_name)
}

/// The token in a link's query.
fn token_of(query: &str) -> Option<&str> {
    query.split('&').find_map(|pair| pair.strip_prefix("token="))
}

fn cookies<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a str> {
    let all = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = all.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(move |(own, _)| *own == name).map(|(_, value)| value)
}

/// Sets the browser's cookie. A redirect would not work: after a link from another site, a browser would follow it
/// without the cookie.
fn set_cookie(shared: &Shared) -> Response {
    let body = "<meta http-equiv=\"refresh\" content=\"0;url=/\"><p>Opening the runs…";
    let mut response = plain_page(StatusCode::OK, body);
    let cookie = format!(
        "{}={}; Path=/; Max-Age={COOKIE_S}; HttpOnly; SameSite=Strict",
        shared.cookie_name,
        shared.verifier.cookie()
    );
    let cookie = HeaderValue::from_str(&cookie).expect("letters and digits");
    response.headers_mut().insert(SET_COOKIE, cookie);
    response
}

fn unauthorized() -> Response {
    let mut response =
        problem(StatusCode::UNAUTHORIZED, "the token is missing or wrong; `plimsoll serve` prints it at its start")
            .into_response();
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Page for clients without a token.
fn token_page(why: &str) -> Response {
    let body = format!(
        "<h1>Plimsoll</h1><p>{why}</p><p>Open the link that <code>plimsoll serve</code> printed at its start, \
         or paste its token:</p><form action=\"/\" method=\"get\"><input name=\"token\" type=\"password\" \
         autocomplete=\"off\" aria-label=\"Token\" required><button>Open</button></form>"
    );
    let mut response = plain_page(StatusCode::UNAUTHORIZED, &body);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn plain_page(status: StatusCode, body: &str) -> Response {
    let page = format!(
        "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>Plimsoll</title><style>{}</style>{body}</html>",
        include_str!("../page/locked.css")
    );
    let headers = [(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, PLAIN_POLICY)];
    (status, headers, page).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_accepts_addresses_and_own_names_only() {
        let allowed = ["box.tail1234.ts.net".to_owned()];
        for own in [
            "127.0.0.1:7077",
            "localhost",
            "LOCALHOST:1",
            "[::1]:7077",
            "[fe80::1]",
            "10.0.0.2",
            "Box.tail1234.ts.net:80",
        ] {
            assert!(is_own_name(own, &allowed), "{own}");
        }
        let foreign =
            ["evil.example", "127.0.0.1.evil.example:7077", "localhost.evil.example", "", ":80", "[::1", "::1", "a@b"];
        for foreign in foreign.into_iter().chain(["127.0.0.1:x", "[evil]:80", "127.0.0.1:99999", "localhost:7077:80"]) {
            assert!(!is_own_name(foreign, &allowed), "{foreign}");
        }
    }

    #[test]
    fn cookies_with_other_names_are_ignored() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, HeaderValue::from_static("a=1; plimsoll_7077=x;b=2"));
        headers.append(COOKIE, HeaderValue::from_static("plimsoll_70=y; plimsoll_7077=z"));
        assert_eq!(cookies(&headers, "plimsoll_7077").collect::<Vec<_>>(), ["x", "z"]);
        assert_eq!(token_of("a=b&token=abc&token=def"), Some("abc"));
        assert_eq!(token_of("mytoken=abc"), None);
    }
}

//! Who is let in: whoever has the token, by its link, its cookie or a header. What comes from pages of others is refused,
//! whatever they got the browser to send along.
//!
//! - A page of another server can't read answers (no CORS), and its browser sends no cookie (SameSite=Strict).
//! - A name that its owner has changed to this address (DNS rebinding) is no name of this server: `Host` is checked.
//! - What changes something needs the header with the token, or the origin of this server's own page.

use crate::places::Seat;
use crate::routes::{BODY_BYTES, Shared};
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

/// Who gives a wrong token waits this long for the answer.
const WRONG: Duration = Duration::from_millis(500);

/// How long a browser keeps the cookie: a month.
const COOKIE_S: u32 = 30 * 86_400;

/// What pages may do: load this server's files, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What pages without files may do.
const BARE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'self'; \
    frame-ancestors 'none'";

/// Lets a request in or not, and gives every answer the headers that keep browsers careful.
pub(crate) async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let mut response = match check(&shared, &request) {
        Ok(()) => match whole(request, shared.patience).await {
            Ok(request) => next.run(request).await,
            Err(problem) => problem.into_response(),
        },
        Err(Refused::Answer(response)) => *response,
        Err(Refused::Guess(response)) => {
            tokio::time::sleep(WRONG).await;
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

/// The request with all of its body, from a connection that keeps its place for it. Errors: it is too long, or too slow.
async fn whole(request: Request, patience: Duration) -> Result<Request, Problem> {
    let (parts, body) = request.into_parts();
    let bytes = match tokio::time::timeout(patience, to_bytes(body, BODY_BYTES)).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => return Err(problem(StatusCode::PAYLOAD_TOO_LARGE, "too much was posted, or it was cut short")),
        Err(_) => return Err(problem(StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time")),
    };
    if let Some(seat) = parts.extensions.get::<Seat>() {
        seat.let_in();
    }
    Ok(Request::from_parts(parts, bytes.into()))
}

/// Who is not let in.
enum Refused {
    Answer(Box<Response>),
    /// Who may be guessing waits for the answer.
    Guess(Box<Response>),
}

fn check(shared: &Shared, request: &Request) -> Result<(), Refused> {
    let answer = |response: Response| Err(Refused::Answer(Box::new(response)));
    let headers = request.headers();
    let host = text(headers, HOST);
    if !host.is_some_and(|host| is_own_name(host, &shared.hosts)) {
        let message =
            "this server does not know itself by that name: ask it by its address, or allow the name when it starts";
        return answer(problem(StatusCode::MISDIRECTED_REQUEST, message).into_response());
    }
    let is_page = request.uri().path() == "/";
    if let Some(token) = is_page.then(|| token_of(request.uri().query()?)).flatten() {
        return Err(match shared.lock.opens_by_token(token) {
            true => Refused::Answer(Box::new(welcome(shared))),
            false => Refused::Guess(Box::new(locked("That is not the token of this server."))),
        });
    }
    let bearer = text(headers, AUTHORIZATION).and_then(|value| value.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
    if let Some(token) = bearer {
        return match shared.lock.opens_by_token(token) {
            true => Ok(()),
            false => Err(Refused::Guess(Box::new(unauthorized()))),
        };
    }
    if !cookies(headers, &shared.cookie_name).any(|cookie| shared.lock.opens_by_cookie(cookie)) {
        return answer(if is_page { locked("") } else { unauthorized() });
    }
    let is_harmless = [Method::GET, Method::HEAD].contains(request.method());
    // A browser names the origin of whatever it posts.
    let origin = text(headers, ORIGIN).and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
    match is_harmless || (origin.is_some() && origin == host) {
        true => Ok(()),
        false => answer(
            problem(StatusCode::FORBIDDEN, "orders come from this server's own page, or with the token")
                .into_response(),
        ),
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    // Two of them mean that somebody is to be deceived.
    values.next().filter(|_| values.next().is_none())?.to_str().ok()
}

/// Whether a `Host` can be this server: an address, which nobody else can have changed, this machine's own name for itself, or
/// a name that is allowed.
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

/// The token of a link.
fn token_of(query: &str) -> Option<&str> {
    query.split('&').find_map(|pair| pair.strip_prefix("token="))
}

fn cookies<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a str> {
    let all = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = all.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(move |(own, _)| *own == name).map(|(_, value)| value)
}

/// Gives a browser its cookie. Not by a redirect: after one, a browser that followed a link from elsewhere would not send it.
fn welcome(shared: &Shared) -> Response {
    let body = "<meta http-equiv=\"refresh\" content=\"0;url=/\"><p>Opening the runs…";
    let mut response = bare(StatusCode::OK, body);
    let cookie = format!(
        "{}={}; Path=/; Max-Age={COOKIE_S}; HttpOnly; SameSite=Strict",
        shared.cookie_name,
        shared.lock.cookie()
    );
    let cookie = HeaderValue::from_str(&cookie).expect("letters and digits");
    response.headers_mut().insert(SET_COOKIE, cookie);
    response
}

fn unauthorized() -> Response {
    let mut response =
        problem(StatusCode::UNAUTHORIZED, "the token of `plimsoll serve` is missing or wrong").into_response();
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// The page of who has no token.
fn locked(why: &str) -> Response {
    let body = format!(
        "<h1>Plimsoll</h1><p>{why}</p><p>This page opens with the link that <code>plimsoll serve</code> prints when it starts. \
         Or paste its token:</p><form action=\"/\" method=\"get\"><input name=\"token\" type=\"password\" \
         autocomplete=\"off\" aria-label=\"Token\" required><button>Open</button></form>"
    );
    let mut response = bare(StatusCode::UNAUTHORIZED, &body);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn bare(status: StatusCode, body: &str) -> Response {
    let page = format!(
        "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>Plimsoll</title><style>{}</style>{body}</html>",
        include_str!("../page/locked.css")
    );
    let headers = [(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, BARE_POLICY)];
    (status, headers, page).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_own_names_are_hosts_and_names_of_others_are_not() {
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
    fn cookies_of_others_are_no_cookie() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, HeaderValue::from_static("a=1; plimsoll_7077=x;b=2"));
        headers.append(COOKIE, HeaderValue::from_static("plimsoll_70=y; plimsoll_7077=z"));
        assert_eq!(cookies(&headers, "plimsoll_7077").collect::<Vec<_>>(), ["x", "z"]);
        assert_eq!(token_of("a=b&token=abc&token=def"), Some("abc"));
        assert_eq!(token_of("mytoken=abc"), None);
    }
}

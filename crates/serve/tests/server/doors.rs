//! Access control: which requests are served and which are refused.

use crate::support::{Runs, TOKEN, bearer};

#[test]
fn requests_without_the_token_are_refused() {
    let runs = Runs::new();
    let _training = runs.add("secret-run", 2);
    let server = runs.serve();
    let id = server.id("secret-run");
    let paths = ["/", "/app.js", "/uplot.js", "/api/runs", "/api/machine", "/api/events", "/metrics", "/nothing"];
    let paths = paths
        .map(str::to_owned)
        .into_iter()
        .chain(["", "/samples", "/plan", "/report"].map(|of| format!("/api/runs/{id}{of}")));
    for path in paths {
        let cookie = "\r\nCookie: plimsoll=x; plimsoll_7077=y";
        for headers in
            ["", cookie, "\r\nAuthorization: Basic YTpi", "\r\nAuthorization: Bearer", "\r\nAuthorization: Bearer  "]
        {
            let answer = server.ask(&path, headers);
            assert_eq!(answer.status, 401, "{path} {headers}");
            assert!(!answer.body.contains("secret-run"), "{path}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
    }
    for wrong in ["a-token-for-test", "a-token-for-testz", "A-TOKEN-FOR-TESTS", "a-token-for-tests2", "%00"] {
        assert_eq!(server.ask("/api/runs", &format!("\r\nAuthorization: Bearer {wrong}")).status, 401, "{wrong}");
        let page = server.ask(&format!("/?token={wrong}"), "");
        assert_eq!((page.status, page.header("set-cookie")), (401, None), "{wrong}");
    }
    let order = server.post(&format!("/api/runs/{id}/order"), "", "{\"action\":\"stop\"}");
    assert_eq!(order.status, 401);
    assert_eq!(server.get("/api/runs").status, 200);
    assert_eq!(server.ask("/api/runs", &format!("\r\nauthorization: bearer {TOKEN}")).status, 200);
}

#[test]
fn the_link_sets_a_cookie_that_scripts_and_other_sites_cannot_use() {
    let runs = Runs::new();
    let server = runs.serve();
    let welcome = server.ask(&format!("/?token={TOKEN}"), "");
    let cookie = welcome.header("set-cookie").expect("a cookie");
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(cookie.starts_with(&format!("plimsoll_{}=", server.address.port())), "ports of a host share cookies");
    assert!(!cookie.contains(TOKEN) && !welcome.body.contains(TOKEN), "browsers do not store the token");
    // A redirect would carry no cookie for a visitor from another site.
    assert_eq!((welcome.status, welcome.header("location")), (200, None));
    let cookie = server.cookie();
    for path in [
        "/",
        "/app.js",
        "/charts.js",
        "/map.js",
        "/theme.js",
        "/uplot.js",
        "/uplot.css",
        "/app.css",
        "/icon.svg",
        "/api/runs",
    ] {
        assert_eq!(server.ask(path, &cookie).status, 200, "{path}");
    }
    // A cookie of an earlier token is refused.
    let cut = &cookie[..cookie.len() - 2];
    assert_eq!(server.ask("/", cut).status, 401);
}

#[test]
fn foreign_host_names_are_refused_even_with_the_token() {
    let runs = Runs::new();
    let server = runs.serve();
    let port = server.address.port();
    let ask = |host: &str| server.say(&format!("GET /api/runs HTTP/1.1\r\nHost: {host}{}", bearer()), "").status;
    for own in
        [format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("[::1]:{port}"), "box.example".to_owned()]
    {
        assert_eq!(ask(&own), 200, "{own}");
    }
    for foreign in ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:7077", "box.example.evil.example"]
    {
        assert_eq!(ask(foreign), 421, "{foreign}");
    }
    let two = format!("GET /api/runs HTTP/1.1\r\nHost: localhost\r\nHost: evil.example{}", bearer());
    assert_ne!(server.say(&two, "").status, 200);
    assert_ne!(server.say(&format!("GET /api/runs HTTP/1.1{}", bearer()), "").status, 200, "no `Host` header");
}

#[test]
fn pages_of_other_sites_cannot_send_orders() {
    let runs = Runs::new();
    let mut training = runs.add("a", 1);
    let server = runs.serve();
    let (path, cookie) = (format!("/api/runs/{}/order", server.id("a")), server.cookie());
    let (pause, own) = ("{\"action\":\"pause\"}", format!("\r\nOrigin: http://{}", server.address));
    let port = server.address.port();
    for origin in [
        String::new(),
        "\r\nOrigin: null".to_owned(),
        "\r\nOrigin: http://evil.example".to_owned(),
        // Another server on the same machine: the browser sends its cookies, since ports are one site.
        format!("\r\nOrigin: http://127.0.0.1:{}", port.wrapping_add(1)),
        format!("\r\nOrigin: http://{}.evil.example", server.address),
    ] {
        let answer = server.post(&path, &format!("{cookie}{origin}"), pause);
        assert_eq!(answer.status, 403, "{origin}");
    }
    assert_eq!(training.inbox.poll().orders, []);
    assert_eq!(server.post(&path, &format!("{cookie}{own}"), pause).status, 202);
    assert_eq!(server.post(&path, &bearer(), "{\"action\":\"stop\"}").status, 202, "scripts send the token");
    assert_eq!(training.inbox.poll().orders.len(), 2);
    // A form on another page cannot send JSON.
    let head = format!("POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: text/plain{}", server.address, bearer());
    assert_eq!(server.say(&head, pause).status, 415);
    assert_eq!(server.ask(&path, &bearer()).status, 405, "orders need POST");
}

#[test]
fn every_response_has_security_headers() {
    let runs = Runs::new();
    let server = runs.serve();
    for (path, headers) in [
        ("/", server.cookie()),
        ("/", String::new()),
        ("/api/runs", bearer()),
        ("/nothing", bearer()),
        ("/app.js", bearer()),
    ] {
        let answer = server.ask(path, &headers);
        let policy = answer.header("content-security-policy").expect("a policy");
        assert!(
            policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{path}: {policy}"
        );
        assert!(answer.status == 401 || !policy.contains("unsafe"), "{path}: {policy}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{path}");
        }
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
}

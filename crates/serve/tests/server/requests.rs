//! Requests that no client sends: random bytes, and requests changed or cut. The server answers or closes the
//! connection, and serves others.

use crate::support::{Runs, bearer};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::io::{Read, Write};
use std::net::Shutdown;

fn request() -> impl Strategy<Value = Vec<u8>> {
    let path = "/(api/(runs|machine|events|metrics)?)?(/[a-z0-9%./?=&-]{0,30})?|\\PC{0,30}";
    let header = "[A-Za-z-]{1,15}: \\PC{0,30}|Content-Length: [0-9-]{0,22}|Transfer-Encoding: chunked|Host: \\PC{0,20}";
    let whole = ("GET|POST|HEAD|PUT|\\PC{0,6}", path, prop::collection::vec(header, 0..5), "\\PC{0,60}");
    let whole = whole.prop_map(|(method, path, headers, body)| {
        format!("{method} {path} HTTP/1.1\r\n{}{}\r\n\r\n{body}", headers.join("\r\n"), bearer()).into_bytes()
    });
    let cut = (whole, any::<prop::sample::Index>(), any::<bool>()).prop_map(|(mut request, at, cuts)| {
        let at = at.index(request.len());
        if cuts {
            request.truncate(at)
        } else {
            request[at] ^= 0x80
        }
        request
    });
    prop_oneof![3 => cut, 1 => prop::collection::vec(any::<u8>(), 0..200)]
}

#[test]
fn after_any_request_the_next_one_is_served() {
    let runs = Runs::new();
    let _training = runs.add("a-run", 2);
    let server = runs.serve();
    let result = TestRunner::new(Config { cases: 200, ..Config::default() }).run(&request(), |request| {
        let mut stream = server.connect();
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(&request);
        let _ = stream.shutdown(Shutdown::Write);
        let mut start = [0; 512];
        let _ = stream.read(&mut start);
        prop_assert_eq!(server.get("/api/runs").status, 200);
        Ok(())
    });
    assert!(result.is_ok(), "{result:?}");
}

//! A server that receives messages and sends the same response to all.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

pub struct MessageServer {
    /// Its address, without a trailing slash.
    pub url: String,
    /// The requests, in order.
    pub requests: Receiver<String>,
}

impl MessageServer {
    /// Responds with a status and, if it is an error, echoes the request.
    pub fn start(status: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (sender, requests) = channel();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut text = String::new();
                let mut block = [0; 4096];
                while !is_whole(&text) {
                    match stream.read(&mut block) {
                        Ok(read) if read > 0 => text += &String::from_utf8_lossy(&block[..read]),
                        _ => break,
                    }
                }
                // Store the request before the client sees the response.
                if sender.send(text.clone()).is_err() {
                    return;
                }
                let body = if status < 300 { answer_of(&text) } else { text.as_str() };
                let length = body.len();
                // Ignore clients that have disconnected.
                let _ = write!(stream, "HTTP/1.1 {status} Status\r\ncontent-length: {length}\r\n\r\n{body}");
            }
        });
        Self { url, requests }
    }
}

/// The response of the requested service; Telegram's and ntfy's have the same fields.
fn answer_of(request: &str) -> &'static str {
    match request.split(' ').nth(1).unwrap_or_default() {
        path if path.starts_with("/bot") || path.starts_with("/ntfy") => r#"{"ok":true,"id":"1"}"#,
        path if path.starts_with("/discord") => "",
        _ => "ok",
    }
}

fn is_whole(text: &str) -> bool {
    text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
        let length =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        body.len() >= length.unwrap_or(0_usize)
    })
}

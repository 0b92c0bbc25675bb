//! A mail server with TLS, a self-signed certificate and AUTH, with configurable faults.

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offers {
    Plain,
    StartTls,
    Tls,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mood {
    Good,
    /// Rejects the password and quotes it.
    Quotes,
    /// Temporarily rejects the first mail.
    Busy,
    /// Closes the connection after the sender.
    Closes,
    /// Never responds.
    Hangs,
    /// Sends an endless response.
    Endless,
}

pub struct SmtpServer {
    pub port: u16,
    /// The certificate file.
    pub authority: PathBuf,
    mails: Arc<Mutex<Vec<String>>>,
    logins: Arc<Mutex<Vec<String>>>,
    _folder: tempfile::TempDir,
}

struct Session {
    offers: Offers,
    mood: Mood,
    number: usize,
    mails: Arc<Mutex<Vec<String>>>,
    logins: Arc<Mutex<Vec<String>>>,
}

impl SmtpServer {
    pub fn start(offers: Offers, mood: Mood) -> Self {
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let folder = tempfile::tempdir().expect("a folder");
        let authority = folder.path().join("ca.pem");
        std::fs::write(&authority, key.cert.pem()).expect("written");
        let private = PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
        let config = config.with_no_client_auth().with_single_cert(vec![key.cert.der().clone()], private);
        let config = Arc::new(config.expect("a key for the certificate"));
        let listener = TcpListener::bind("localhost:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (mails, logins) = (Arc::default(), Arc::default());
        let (of_mails, of_logins) = (Arc::clone(&mails), Arc::clone(&logins));
        thread::spawn(move || {
            for (number, stream) in listener.incoming().flatten().enumerate() {
                let (mails, logins) = (Arc::clone(&of_mails), Arc::clone(&of_logins));
                let (session, config) = (Session { offers, mood, number, mails, logins }, config.clone());
                // A client that disconnects is not a failure of the server.
                thread::spawn(move || drop(session.serve(stream, config)));
            }
        });
        Self { port, authority, mails, logins, _folder: folder }
    }

    pub fn mails(&self) -> Vec<String> {
        self.mails.lock().expect("no panic").clone()
    }

    pub fn logins(&self) -> Vec<String> {
        self.logins.lock().expect("no panic").clone()
    }
}

impl Session {
    fn serve(&self, mut stream: TcpStream, config: Arc<ServerConfig>) -> io::Result<()> {
        let tls = |stream| {
            Ok::<_, io::Error>(StreamOwned::new(ServerConnection::new(config).map_err(io::Error::other)?, stream))
        };
        if self.mood == Mood::Hangs {
            return stream.read(&mut [0]).map(drop);
        }
        if self.offers == Offers::Tls {
            let mut stream = tls(stream)?;
            return self.talk(&mut stream, true, true).map(drop);
        }
        if self.talk(&mut stream, true, false)? {
            self.talk(&mut tls(stream)?, false, true)?;
        }
        Ok(())
    }

    /// Returns whether the client requested TLS.
    fn talk(&self, stream: &mut (impl Read + Write), greets: bool, is_encrypted: bool) -> io::Result<bool> {
        if greets {
            stream.write_all(b"220 localhost ESMTP\r\n")?;
        }
        loop {
            let line = line(stream)?;
            let word = line.split(' ').next().unwrap_or_default().to_ascii_uppercase();
            let answer = match word.as_str() {
                "EHLO" if self.mood == Mood::Endless => loop {
                    stream.write_all(b"250-more\r\n")?;
                },
                "EHLO" if self.offers == Offers::StartTls && !is_encrypted => {
                    "250-localhost\r\n250 STARTTLS".to_owned()
                }
                "EHLO" => "250-localhost\r\n250-8BITMIME\r\n250 AUTH PLAIN LOGIN".to_owned(),
                "STARTTLS" => {
                    stream.write_all(b"220 ready\r\n")?;
                    return Ok(true);
                }
                "AUTH" if self.mood == Mood::Quotes => {
                    let of_line = line.clone();
                    format!("535 5.7.8 not known: {of_line}")
                }
                "AUTH" => {
                    self.logins.lock().expect("no panic").push(line);
                    "235 welcome".to_owned()
                }
                "MAIL" if self.mood == Mood::Busy && self.number == 0 => "451 4.3.0 later".to_owned(),
                "MAIL" if self.mood == Mood::Closes && self.number == 0 => return Ok(false),
                "MAIL" | "RCPT" | "RSET" | "NOOP" => "250 fine".to_owned(),
                "DATA" => {
                    stream.write_all(b"354 send data\r\n")?;
                    self.mails.lock().expect("no panic").push(data(stream)?);
                    "250 taken".to_owned()
                }
                "QUIT" => {
                    stream.write_all(b"221 bye\r\n")?;
                    return Ok(false);
                }
                other => format!("500 what is {other}?"),
            };
            stream.write_all(format!("{answer}\r\n").as_bytes())?;
            stream.flush()?;
        }
    }
}

fn data(stream: &mut impl Read) -> io::Result<String> {
    let mut mail = String::new();
    loop {
        match line(stream)?.as_str() {
            "." => return Ok(mail),
            line => mail += &format!("{}\n", line.strip_prefix('.').unwrap_or(line)),
        }
    }
}

/// A line without its end, read byte by byte, since the next bytes may be TLS.
fn line(stream: &mut impl Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        bytes.extend(byte);
    }
    Ok(String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned())
}

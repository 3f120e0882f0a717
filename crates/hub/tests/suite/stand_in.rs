//! A stand-in of the hub: its protocol over a listener on loopback, with faults on demand.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use sha2::{Digest as _, Sha256};

/// The commit that all files are of.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What it does wrong, or otherwise than the simplest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// Answers with contents end after so many bytes.
    pub(crate) cut_at: Option<usize>,
    /// How many answers do so.
    pub(crate) cuts: usize,
    /// Status of every answer.
    pub(crate) status: Option<u16>,
    /// The token without which it answers 401.
    pub(crate) token: Option<String>,
    /// Bytes that are announced beyond those that there are.
    pub(crate) announced: i64,
    /// Ranges are not known.
    pub(crate) is_whole: bool,
    /// Contents are at another host's, this one's address.
    pub(crate) contents_at: Option<String>,
    /// A byte of each content is another.
    pub(crate) is_wrong: bool,
    /// What it answers instead of the list of files.
    pub(crate) list: Option<String>,
    /// The ETag of all files.
    pub(crate) etag: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    faults: Faults,
    /// Heads of requests, in order.
    requests: Vec<String>,
}

/// A hub with one repository, `own/tiny`.
#[derive(Clone, Debug)]
pub(crate) struct StandIn {
    pub(crate) address: String,
    state: Arc<Mutex<State>>,
}

struct Request {
    path: String,
    head: String,
    range: Option<usize>,
    is_first: bool,
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    let path = head
        .split(' ')
        .nth(1)?
        .split('?')
        .next()?
        .replace("%20", " ");
    let lower = head.to_ascii_lowercase();
    let range = lower
        .lines()
        .find_map(|it| it.strip_prefix("range: bytes="));
    let is_first = range == Some("0-0");
    let range = range.and_then(|it| it.split('-').next()?.parse().ok());
    Some(Request {
        path,
        head,
        range,
        is_first,
    })
}

fn hash_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|it| format!("{it:02x}"))
        .collect()
}

impl StandIn {
    pub(crate) fn new(files: &[(&str, &[u8])]) -> StandIn {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let all = files
            .iter()
            .map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec()));
        let state = Arc::new(Mutex::new(State {
            files: all.collect(),
            ..State::default()
        }));
        let shared = Arc::clone(&state);
        // It ends with the process: a test does not wait for it.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || answer(&stream, &shared));
            }
        });
        StandIn { address, state }
    }

    pub(crate) fn with(&self, faults: Faults) -> &StandIn {
        self.state.lock().unwrap().faults = faults;
        self
    }

    /// Takes the heads of the requests since the last call.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }
}

fn answer(stream: &TcpStream, state: &Mutex<State>) -> Option<()> {
    let request = read_request(stream)?;
    let (files, faults) = {
        let mut state = state.lock().unwrap();
        state.requests.push(request.head.clone());
        (state.files.clone(), state.faults.clone())
    };
    let mut stream = stream;
    let mut plain = |status: u16, headers: &str, body: &[u8]| {
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n{headers}\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).ok()?;
        stream.write_all(body).ok()
    };
    if let Some(status) = faults.status {
        return plain(status, "", b"{\"error\": \"no\"}");
    }
    let wanted = faults
        .token
        .as_ref()
        .map(|it| format!("bearer {it}").to_ascii_lowercase());
    let head = request.head.to_ascii_lowercase();
    if wanted.is_some_and(|it| !head.contains(&format!("authorization: {it}\r\n"))) {
        return plain(401, "", b"{\"error\": \"Invalid credentials\"}");
    }
    if request.path == "/api/models/own/tiny/revision/main" {
        let names = files.keys().map(|it| format!("{{\"rfilename\": {it:?}}}"));
        let names: Vec<String> = names.collect();
        let list = format!(
            "{{\"sha\": {COMMIT:?}, \"siblings\": [{}]}}",
            names.join(", ")
        );
        return plain(200, "", faults.list.unwrap_or(list).as_bytes());
    }
    let at_hub = request.path.strip_prefix("/own/tiny/resolve/main/");
    let Some(name) = at_hub.or_else(|| request.path.strip_prefix("/contents/")) else {
        return plain(404, "", b"{}");
    };
    let Some(bytes) = files.get(name) else {
        return plain(404, "", b"Entry not found");
    };
    let size = (bytes.len() as i64 + faults.announced) as usize;
    let etag = faults.etag.clone().unwrap_or_else(|| hash_of(bytes));
    if let (Some(_), Some(other)) = (at_hub, &faults.contents_at) {
        let name = name.replace(' ', "%20");
        let headers = format!(
            "Location: {other}/contents/{name}?signature=secret\r\nX-Linked-Etag: \"{etag}\"\r\n\
             X-Linked-Size: {size}\r\nX-Repo-Commit: {COMMIT}\r\n"
        );
        return plain(302, &headers, b"");
    }
    let mut bytes = bytes.clone();
    if let Some(byte) = bytes.first_mut().filter(|_| faults.is_wrong) {
        *byte ^= 1;
    }
    let mut named = format!("ETag: \"{etag}\"\r\n");
    if at_hub.is_some() {
        named.push_str(&format!("X-Repo-Commit: {COMMIT}\r\n"));
    }
    if bytes.is_empty() && request.is_first {
        return plain(416, &format!("{named}Content-Range: bytes */0\r\n"), b"");
    }
    let first = request.range.filter(|_| !faults.is_whole);
    let end = if request.is_first { 1 } else { bytes.len() };
    let body = &bytes[first.unwrap_or(0)..if first.is_some() { end } else { bytes.len() }];
    let announced = body.len() as i64
        + if request.is_first {
            0
        } else {
            faults.announced
        };
    let (status, range) = match first {
        Some(first) => {
            let last = (first + body.len()).max(1) - 1;
            (
                206,
                format!("Content-Range: bytes {first}-{last}/{size}\r\n"),
            )
        }
        None => (200, String::new()),
    };
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Length: {announced}\r\nConnection: close\r\n{range}{named}\r\n"
    );
    stream.write_all(head.as_bytes()).ok()?;
    let cut = faults
        .cut_at
        .filter(|_| !request.is_first && faults.cuts > 0);
    if cut.is_some() {
        state.lock().unwrap().faults.cuts -= 1;
    }
    stream
        .write_all(&body[..cut.unwrap_or(body.len()).min(body.len())])
        .ok()
}

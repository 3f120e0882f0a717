//! Requests to a hub: redirects, the token, sizes.
//!
//! Invariant: the token goes to the hub's own scheme, host and port, and to nothing else, wherever
//! redirects lead; and no address that one leads to is in an error.

use std::io::Read;
use std::time::Duration;

use ureq::Agent;
use ureq::http::uri::{Authority, Scheme};
use ureq::http::{Response, StatusCode, Uri};

use crate::error::{HubError, Result};
use crate::token::HubToken;

/// How long a connection, and an answer's first byte, may take.
const CONNECT: Duration = Duration::from_secs(30);
/// How long nothing may come of an answer.
const SILENCE: Duration = Duration::from_secs(60);
/// The most redirects.
const REDIRECTS: usize = 8;
/// The largest list of files.
const LIST_BYTES: u64 = 32 << 20;

/// Host and port, and scheme, of the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    scheme: Scheme,
    authority: Authority,
}

impl Origin {
    fn of(uri: &Uri) -> Option<Origin> {
        let scheme = uri.scheme()?;
        let is_known = *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS;
        is_known.then_some(())?;
        Some(Origin {
            scheme: scheme.clone(),
            authority: uri.authority()?.clone(),
        })
    }
}

/// What a hub says of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileFacts {
    /// Name of its content.
    pub(crate) etag: String,
    /// The commit that it is of, if the hub says so.
    pub(crate) commit: Option<String>,
    pub(crate) size: u64,
}

/// A part of a file, as it comes.
pub(crate) struct FilePart {
    /// The first byte's place.
    pub(crate) first: u64,
    /// Size of the file, if the answer says so.
    pub(crate) size: Option<u64>,
    pub(crate) body: Box<dyn Read>,
}

/// Requests to one hub.
#[derive(Clone, Debug)]
pub(crate) struct HubClient {
    agent: Agent,
    endpoint: String,
    origin: Origin,
    token: Option<HubToken>,
}

/// The answer behind all redirects, and what was said on the way.
struct HubAnswer {
    response: Response<ureq::Body>,
    etag: Option<String>,
    commit: Option<String>,
    size: Option<u64>,
}

fn header<'a, B>(response: &'a Response<B>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

/// `bytes 0-0/123`: the first place and the size, if they are said.
fn content_range(text: &str) -> (Option<u64>, Option<u64>) {
    let Some((range, size)) = text
        .strip_prefix("bytes ")
        .and_then(|it| it.split_once('/'))
    else {
        return (None, None);
    };
    let first = range
        .split_once('-')
        .and_then(|(first, _)| first.parse().ok());
    (first, size.parse().ok())
}

/// A name of a file in an address.
fn escaped(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                text.push(char::from(byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// The reason of a failure. Its own texts may contain addresses, of which some are secrets.
fn reason(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::Timeout(_) => "it takes too long".to_owned(),
        ureq::Error::HostNotFound => "the name is not known".to_owned(),
        ureq::Error::ConnectionFailed => "the connection failed".to_owned(),
        ureq::Error::Tls(what) => (*what).to_owned(),
        ureq::Error::Rustls(error) => error.to_string(),
        ureq::Error::InvalidProxyUrl | ureq::Error::ConnectProxyFailed(_) => {
            "the proxy that the environment names does not work".to_owned()
        }
        _ => "the answer is no HTTP".to_owned(),
    }
}

impl HubClient {
    /// A client of the hub at this address.
    ///
    /// # Errors
    /// [`HubError::Setting`] of an address that is no `http` or `https`.
    pub(crate) fn new(endpoint: &str, token: Option<HubToken>) -> Result<HubClient> {
        let endpoint = endpoint.trim_end_matches('/');
        let uri: Option<Uri> = endpoint.parse().ok();
        let origin = uri.as_ref().and_then(Origin::of);
        let has_more = |uri: &Uri| {
            let is_user = uri.authority().is_some_and(|it| it.as_str().contains('@'));
            is_user || uri.query().is_some()
        };
        let Some(origin) = origin.filter(|_| !uri.as_ref().is_some_and(has_more)) else {
            return Err(HubError::Setting {
                variable: "HF_ENDPOINT".to_owned(),
                what: "is no address such as https://huggingface.co".to_owned(),
            });
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            // Sizes are those of the files.
            .accept_encoding("identity")
            .user_agent(concat!("fercuda/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(HubClient {
            agent: config.into(),
            endpoint: endpoint.to_owned(),
            origin,
            token,
        })
    }

    /// Host and port, for messages.
    pub(crate) fn host(&self) -> &str {
        self.origin.authority.as_str()
    }

    fn answer(&self, repository: &str, what: impl Into<String>) -> HubError {
        HubError::Answer {
            host: self.host().to_owned(),
            repository: repository.to_owned(),
            what: what.into(),
        }
    }

    /// An answer that could not be read on.
    pub(crate) fn unreachable(&self, repository: &str, reason: String) -> HubError {
        HubError::Unreachable {
            host: self.host().to_owned(),
            repository: repository.to_owned(),
            reason,
        }
    }

    /// The address that a redirect leads to.
    fn next(&self, repository: &str, from: &Uri, location: &str) -> Result<Uri> {
        let wrong = || self.answer(repository, "it redirects to no address");
        let there: Uri = match location.starts_with('/') && !location.starts_with("//") {
            false => location.parse().map_err(|_| wrong())?,
            true => {
                let mut parts = from.clone().into_parts();
                parts.path_and_query = Some(location.parse().map_err(|_| wrong())?);
                Uri::from_parts(parts).map_err(|_| wrong())?
            }
        };
        let origin = Origin::of(&there).ok_or_else(wrong)?;
        let is_safe = |uri: &Uri| uri.scheme() == Some(&Scheme::HTTPS);
        match is_safe(from) && origin.scheme != Scheme::HTTPS {
            true => Err(self.answer(repository, "it redirects from https to http")),
            false => Ok(there),
        }
    }

    fn get(&self, repository: &str, address: &str, range: Option<String>) -> Result<HubAnswer> {
        let parsed = address.parse();
        let mut uri: Uri = parsed.map_err(|_| self.answer(repository, "a name of no address"))?;
        let (mut etag, mut commit, mut size) = (None, None, None);
        for _ in 0..=REDIRECTS {
            let mut request = self.agent.get(uri.clone());
            let is_own = Origin::of(&uri).as_ref() == Some(&self.origin);
            if let Some(token) = self.token.as_ref().filter(|_| is_own) {
                request = request.header("Authorization", token.header());
            }
            if let Some(range) = &range {
                request = request.header("Range", range);
            }
            let response = request
                .call()
                .map_err(|error| self.unreachable(repository, reason(&error)))?;
            let text = |name| header(&response, name).map(str::to_owned);
            if is_own {
                // What the hub says of the file itself counts, not what a server of contents does.
                etag = etag.or(text("x-linked-etag"));
                commit = commit.or(text("x-repo-commit"));
                size = size.or(text("x-linked-size").and_then(|it| it.parse().ok()));
            }
            if !response.status().is_redirection() {
                let etag = etag.or(text("etag"));
                return Ok(HubAnswer {
                    etag,
                    commit,
                    size,
                    response,
                });
            }
            let Some(location) = header(&response, "location") else {
                return Err(self.answer(repository, "it redirects to nowhere"));
            };
            uri = self.next(repository, &uri, location)?;
        }
        Err(self.answer(repository, format!("more than {REDIRECTS} redirects")))
    }

    /// The error of a status that is no success.
    fn check(&self, repository: &str, file: Option<&str>, status: StatusCode) -> Result<()> {
        match status.as_u16() {
            200..=299 => Ok(()),
            status @ (401 | 403) => Err(HubError::Denied {
                host: self.host().to_owned(),
                repository: repository.to_owned(),
                status,
                with: match self.token {
                    Some(_) => ", although a token was sent",
                    None => "",
                },
            }),
            404 => Err(HubError::Missing {
                what: match file {
                    Some(file) => {
                        format!("{} has no file {file:?} in {repository}", self.host())
                    }
                    None => format!("{} has no model {repository}", self.host()),
                },
                advice: "the right name, or a path of a file or folder that is there".to_owned(),
            }),
            429 => Err(self.answer(repository, "too many requests (status 429)")),
            status => Err(self.answer(repository, format!("status {status}"))),
        }
    }

    /// The description of a repository, as JSON.
    pub(crate) fn describe(&self, repository: &str, path: &str) -> Result<Vec<u8>> {
        let address = format!("{}/api/{path}", self.endpoint);
        let answer = self.get(repository, &address, None)?;
        self.check(repository, None, answer.response.status())?;
        let mut bytes = Vec::new();
        let body = answer.response.into_body().into_reader();
        body.take(LIST_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| self.unreachable(repository, error.to_string()))?;
        match bytes.len() as u64 <= LIST_BYTES {
            true => Ok(bytes),
            false => Err(self.answer(repository, format!("a list of over {LIST_BYTES} bytes"))),
        }
    }

    fn address(&self, path: &str, file: &str) -> String {
        format!("{}/{path}/{}", self.endpoint, escaped(file))
    }

    /// What the hub says of a file, by a request for its first byte.
    pub(crate) fn facts(&self, repository: &str, path: &str, file: &str) -> Result<FileFacts> {
        let address = self.address(path, file);
        let answer = self.get(repository, &address, Some("bytes=0-0".to_owned()))?;
        let status = answer.response.status();
        let range = header(&answer.response, "content-range").map(content_range);
        let (_, of_range) = range.unwrap_or_default();
        // An empty file has no first byte.
        if status != StatusCode::RANGE_NOT_SATISFIABLE || of_range != Some(0) {
            self.check(repository, Some(file), status)?;
        }
        let length = match status {
            StatusCode::OK => answer.response.body().content_length(),
            _ => None,
        };
        let size = of_range.or(length).or(answer.size);
        let missing = |what: &str| self.answer(repository, format!("{file} without {what}"));
        let etag = answer.etag.ok_or_else(|| missing("an ETag"))?;
        let etag = etag.trim_start_matches("W/").trim_matches('"');
        let is_name = (1..=128).contains(&etag.len())
            && etag
                .bytes()
                .all(|it| it.is_ascii_alphanumeric() || it == b'-');
        if !is_name {
            return Err(missing("an ETag that is a hash"));
        }
        Ok(FileFacts {
            etag: etag.to_owned(),
            commit: answer.commit,
            size: size.ok_or_else(|| missing("its size"))?,
        })
    }

    /// A file from this place on; from the first byte, if the hub gives no parts of files.
    pub(crate) fn part(
        &self,
        repository: &str,
        path: &str,
        file: &str,
        from: u64,
    ) -> Result<FilePart> {
        let range = (from > 0).then(|| format!("bytes={from}-"));
        let answer = self.get(repository, &self.address(path, file), range)?;
        let status = answer.response.status();
        self.check(repository, Some(file), status)?;
        let (first, size) = match status {
            StatusCode::PARTIAL_CONTENT => {
                let range = header(&answer.response, "content-range").map(content_range);
                let (first, size) = range.unwrap_or_default();
                let first = first.ok_or_else(|| {
                    self.answer(repository, format!("a part of {file} without its place"))
                })?;
                (first, size)
            }
            _ => (0, answer.response.body().content_length()),
        };
        if first != 0 && first != from {
            let what = format!("{file} from byte {first}, asked from {from}");
            return Err(self.answer(repository, what));
        }
        Ok(FilePart {
            first,
            size,
            body: Box::new(answer.response.into_body().into_reader()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_resolved_and_never_lead_to_less_safety() {
        let client = HubClient::new("https://hub.example/", None).unwrap();
        let from: Uri = "https://hub.example/a/b?x=1".parse().unwrap();
        let next = |location: &str| client.next("a/b", &from, location).map(|it| it.to_string());
        assert_eq!(next("/c/d?y").unwrap(), "https://hub.example/c/d?y");
        assert_eq!(next("https://other/e").unwrap(), "https://other/e");
        for location in [
            "http://hub.example/a",
            "ftp://x/y",
            "c/d",
            "//x/y",
            "",
            "https://",
        ] {
            assert!(next(location).is_err(), "{location}");
        }
        for endpoint in [
            "",
            "hub.example",
            "file:///x",
            "https://u:p@h",
            "https://h/?q=1",
        ] {
            let error = HubClient::new(endpoint, None).unwrap_err().to_string();
            assert!(error.starts_with("HF_ENDPOINT"), "{endpoint}: {error}");
        }
        assert_eq!(content_range("bytes 5-9/10"), (Some(5), Some(10)));
        assert_eq!(content_range("bytes */0"), (None, Some(0)));
        assert_eq!(content_range("5-9/10"), (None, None));
        assert_eq!(escaped("a b/é#?.gguf"), "a%20b/%C3%A9%23%3F.gguf");
    }
}

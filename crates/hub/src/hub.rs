//! Repositories of a hub: which files a model needs, and where they are when they are there.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use hf_hub::{Cache, Repo, RepoType};
use serde_json::Value;

use crate::download::{Download, DownloadProgress, is_inner_name};
use crate::error::{HubError, Result};
use crate::name::HubName;
use crate::select::{Selection, select};
use crate::token::HubToken;
use crate::transport::HubClient;

/// The hub of Hugging Face.
const ENDPOINT: &str = "https://huggingface.co";
/// The most files of a repository.
const FILES: usize = 100_000;
/// How deep folders in a cache are searched.
const DEPTH: usize = 8;

/// Where a hub and its cache are.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// Its address.
    pub endpoint: String,
    /// The folder of the cache, which Hugging Face's libraries share.
    pub cache: PathBuf,
    /// A token for private and gated repositories.
    pub token: Option<HubToken>,
    /// Whether only the cache is used.
    pub is_offline: bool,
}

impl HubSettings {
    /// Settings by the variables of Hugging Face's libraries: `HF_ENDPOINT`; `HF_HUB_CACHE`, else
    /// `hub` in `HF_HOME`, else in `huggingface` of the user's cache folder; `HF_TOKEN`, else the
    /// file `token` in `HF_HOME`; `HF_HUB_OFFLINE`.
    ///
    /// # Errors
    /// [`HubError::Setting`] of a value that is none.
    pub fn from_env() -> Result<HubSettings> {
        let path = |name| {
            env::var_os(name)
                .filter(|it| !it.is_empty())
                .map(PathBuf::from)
        };
        let text = |name: &str| match env::var(name) {
            Ok(text) => Ok(Some(text).filter(|it| !it.trim().is_empty())),
            Err(env::VarError::NotPresent) => Ok(None),
            Err(env::VarError::NotUnicode(_)) => Err(HubError::Setting {
                variable: name.to_owned(),
                what: "is no UTF-8".to_owned(),
            }),
        };
        let caches = || path("XDG_CACHE_HOME").or(path("HOME").map(|it| it.join(".cache")));
        let home = path("HF_HOME").or(caches().map(|it| it.join("huggingface")));
        let Some(home) = home else {
            return Err(HubError::Setting {
                variable: "HOME".to_owned(),
                what: "is not set, and neither is HF_HOME".to_owned(),
            });
        };
        let token = match text("HF_TOKEN")? {
            Some(token) => Some(HubToken::new(&token, "HF_TOKEN")?),
            None => match Cache::new(home.join("hub")).token() {
                Some(token) => {
                    let origin = home.join("token");
                    Some(HubToken::new(&token, &origin.display().to_string())?)
                }
                None => None,
            },
        };
        let offline = text("HF_HUB_OFFLINE")?.map(|it| it.trim().to_ascii_lowercase());
        let is_yes = |it: String| matches!(it.as_str(), "1" | "true" | "yes" | "on");
        Ok(HubSettings {
            endpoint: text("HF_ENDPOINT")?.unwrap_or_else(|| ENDPOINT.to_owned()),
            cache: path("HF_HUB_CACHE").unwrap_or_else(|| home.join("hub")),
            token,
            is_offline: offline.is_some_and(is_yes),
        })
    }
}

/// A hub with its cache.
#[derive(Debug)]
pub struct Hub {
    client: HubClient,
    cache: Cache,
    is_offline: bool,
}

/// The files of one commit.
struct HubListing {
    commit: String,
    files: Vec<String>,
}

impl Hub {
    /// A hub by its settings; nothing is asked of it yet.
    ///
    /// # Errors
    /// [`HubError::Setting`] of an address that is none.
    pub fn new(settings: HubSettings) -> Result<Hub> {
        Ok(Hub {
            client: HubClient::new(&settings.endpoint, settings.token)?,
            // Links in it are relative, and names of files are behind it.
            cache: Cache::new(settings.cache),
            is_offline: settings.is_offline,
        })
    }

    /// Fetches what lacks of a model, and returns the file or the folder to open. `progress` gets
    /// each file that is fetched, as it comes. Where the hub is not reachable, what was fetched
    /// before is taken, if it is complete.
    ///
    /// # Errors
    /// All of [`HubError`].
    pub fn fetch(
        &self,
        name: &HubName,
        progress: &mut dyn FnMut(DownloadProgress<'_>),
    ) -> Result<PathBuf> {
        let repo = Repo::new(name.repository().to_owned(), RepoType::Model);
        let listed = match self.is_offline {
            true => Err(self.client.unreachable(
                name.repository(),
                "HF_HUB_OFFLINE is set, and it is not in the cache".to_owned(),
            )),
            false => self.listing(name, &repo),
        };
        let listing = match listed {
            Ok(listing) => listing,
            Err(error @ HubError::Unreachable { .. }) => {
                return self.cached(name, &repo).ok_or(error);
            }
            Err(error) => return Err(error),
        };
        let selection = select(name.repository(), &listing.files, name.choice())?;
        let download = Download {
            client: &self.client,
            cache: &self.cache,
            repo: &repo,
            repository: name.repository(),
            commit: &listing.commit,
        };
        for file in &selection.files {
            download.fetch(file, progress)?;
        }
        let cached = self.cache.repo(repo.clone());
        let folder = cached.pointer_path(&listing.commit);
        // What a program finds that is offline.
        cached
            .create_ref(&listing.commit)
            .map_err(HubError::io("write to", &folder))?;
        Ok(opened(&folder, &selection))
    }

    /// What the hub has of a repository.
    fn listing(&self, name: &HubName, repo: &Repo) -> Result<HubListing> {
        let bytes = self.client.describe(name.repository(), &repo.api_url())?;
        let wrong = |what: &str| HubError::Answer {
            host: self.client.host().to_owned(),
            repository: name.repository().to_owned(),
            what: what.to_owned(),
        };
        let parsed: Value =
            serde_json::from_slice(&bytes).map_err(|_| wrong("a list of files that is no JSON"))?;
        let commit = parsed
            .get("sha")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let is_hash = |it: &str| {
            (7..=64).contains(&it.len()) && it.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        let siblings = parsed.get("siblings").and_then(Value::as_array);
        let Some(siblings) = siblings.filter(|it| is_hash(commit) && it.len() <= FILES) else {
            return Err(wrong("a list without a commit or files"));
        };
        let names = siblings.iter().map(|it| it.get("rfilename")?.as_str());
        let names = names.map(|it| it.filter(|it| is_inner_name(it)).map(str::to_owned));
        let files: Option<Vec<String>> = names.collect();
        Ok(HubListing {
            commit: commit.to_owned(),
            files: files.ok_or_else(|| wrong("a list with a name that is no file's"))?,
        })
    }

    /// A model that is in the cache as a whole.
    fn cached(&self, name: &HubName, repo: &Repo) -> Option<PathBuf> {
        let cached = self.cache.repo(repo.clone());
        let refs = self.cache.path().join(repo.folder_name()).join("refs");
        let commit = fs::read_to_string(refs.join(repo.revision())).ok()?;
        let commit = commit.trim();
        let is_plain = !commit.is_empty() && commit.bytes().all(|it| it.is_ascii_alphanumeric());
        is_plain.then_some(())?;
        let folder = cached.pointer_path(commit);
        let mut files = Vec::new();
        collect(&folder, "", DEPTH, &mut files);
        let selection = select(name.repository(), &files, name.choice()).ok()?;
        Some(opened(&folder, &selection))
    }
}

/// Files below a folder, by their names from there.
fn collect(folder: &Path, prefix: &str, depth: usize, files: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        // Where links lead to: a content may have been deleted.
        let Ok(metadata) = fs::metadata(entry.path()) else {
            continue;
        };
        if metadata.is_dir() && depth > 0 {
            collect(&entry.path(), &format!("{name}/"), depth - 1, files);
        } else if metadata.is_file() && files.len() < FILES {
            files.push(name);
        }
    }
}

fn opened(folder: &Path, selection: &Selection) -> PathBuf {
    match &selection.opened {
        Some(file) => folder.join(file),
        None => folder.to_owned(),
    }
}

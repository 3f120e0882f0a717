//! Downloads: complete, resumed, refused, damaged, offline.

use std::fs;
use std::path::{Path, PathBuf};

use fercuda_hub::{Hub, HubError, HubName, HubSettings, HubToken};
use tempfile::TempDir;

use crate::stand_in::{COMMIT, Faults, StandIn};

const SECRET: &str = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345";

fn settings(stand_in: &StandIn, cache: &Path) -> HubSettings {
    HubSettings {
        endpoint: stand_in.address.clone(),
        cache: cache.join("hub"),
        token: None,
        is_offline: false,
    }
}

fn fetch(settings: &HubSettings, name: &str) -> Result<PathBuf, HubError> {
    let hub = Hub::new(settings.clone())?;
    hub.fetch(&HubName::parse(name).unwrap(), &mut |_| {})
}

fn content(random: &mut fastrand::Rng, size: usize) -> Vec<u8> {
    (0..size).map(|_| random.u8(..)).collect()
}

fn hub(random: &mut fastrand::Rng) -> (StandIn, Vec<u8>) {
    let size = random.usize(100_000..3_000_000);
    let weights = content(random, size);
    let stand_in = StandIn::new(&[
        ("README.md", b"nothing"),
        ("config.json", b"{}"),
        ("tokenizer.json", b""),
        ("model-00001-of-00002.safetensors", &weights),
        ("model-00002-of-00002.safetensors", &weights[..10]),
        ("model.safetensors.index.json", b"{\"weight_map\": {}}"),
        ("x y/z-Q8_0.gguf", &weights[5..]),
    ]);
    (stand_in, weights)
}

#[test]
fn a_model_is_fetched_once_and_found_again_without_the_hub() {
    let mut random = fercuda_trials::rng();
    let (stand_in, weights) = hub(&mut random);
    let cache = TempDir::new().unwrap();
    let settings = settings(&stand_in, cache.path());
    let hub = Hub::new(settings.clone()).unwrap();
    let name = HubName::parse("own/tiny").unwrap();
    let mut seen = Vec::new();
    let folder = hub.fetch(&name, &mut |it| {
        seen.push((it.file.to_owned(), it.done, it.size));
    });
    let folder = folder.unwrap();
    let read = |name: &str| fs::read(folder.join(name)).unwrap();
    assert_eq!(read("model-00001-of-00002.safetensors"), weights);
    assert_eq!(read("model-00002-of-00002.safetensors"), &weights[..10]);
    assert_eq!(read("tokenizer.json"), b"");
    assert!(!folder.join("README.md").exists());
    assert!(folder.ends_with(format!("models--own--tiny/snapshots/{COMMIT}")));
    let (_, done, size) = seen
        .iter()
        .rfind(|it| it.0 == "model-00001-of-00002.safetensors")
        .unwrap();
    assert_eq!((*done, *size), (weights.len() as u64, weights.len() as u64));
    // A second time only the list is asked for.
    stand_in.requests();
    assert_eq!(fetch(&settings, "own/tiny").unwrap(), folder);
    assert_eq!(stand_in.requests().len(), 1);
    // A file in a folder, of a name with a blank.
    let file = fetch(&settings, "own/tiny:q8_0").unwrap();
    assert_eq!(file, folder.join("x y/z-Q8_0.gguf"));
    assert_eq!(fs::read(&file).unwrap(), &weights[5..]);
    // Without a hub, and without asking.
    let mut away = settings.clone();
    away.endpoint = "http://127.0.0.1:9".to_owned();
    assert_eq!(fetch(&away, "own/tiny").unwrap(), folder);
    away.is_offline = true;
    assert_eq!(fetch(&away, "own/tiny:Q8_0").unwrap(), file);
    // The cache can be moved: links in it are relative.
    let moved = cache.path().join("moved");
    fs::rename(&settings.cache, &moved).unwrap();
    away.cache = moved;
    assert_eq!(
        fs::read(fetch(&away, "own/tiny:Q8_0").unwrap()).unwrap(),
        &weights[5..]
    );
    // A content that was deleted is fetched again.
    let blobs = away.cache.join("models--own--tiny/blobs");
    for blob in fs::read_dir(&blobs).unwrap() {
        fs::remove_file(blob.unwrap().path()).unwrap();
    }
    let error = fetch(&away, "own/tiny").unwrap_err().to_string();
    assert!(error.contains("HF_HUB_OFFLINE"), "{error}");
    (away.endpoint, away.is_offline) = (stand_in.address.clone(), false);
    let folder = fetch(&away, "own/tiny").unwrap();
    assert_eq!(
        fs::read(folder.join("model-00001-of-00002.safetensors")).unwrap(),
        weights
    );
}

#[test]
fn a_download_that_is_cut_short_goes_on_where_it_was() {
    let mut random = fercuda_trials::rng();
    let (stand_in, weights) = hub(&mut random);
    for is_whole in [false, true] {
        let cache = TempDir::new().unwrap();
        let settings = settings(&stand_in, cache.path());
        let cut_at = random.usize(1000..50_000);
        stand_in.with(Faults {
            cut_at: Some(cut_at),
            cuts: 2,
            is_whole,
            ..Faults::default()
        });
        stand_in.requests();
        let file = fetch(&settings, "own/tiny:Q8_0").unwrap();
        assert_eq!(fs::read(file).unwrap(), &weights[5..]);
        let ranges = stand_in.requests().concat().to_ascii_lowercase();
        assert!(
            ranges.contains(&format!("range: bytes={cut_at}-\r\n")),
            "{ranges}"
        );
        assert_eq!(
            ranges.contains(&format!("range: bytes={}-\r\n", 2 * cut_at)),
            !is_whole
        );
    }
}

#[test]
fn a_part_is_kept_for_the_next_attempt() {
    let mut random = fercuda_trials::rng();
    let (stand_in, weights) = hub(&mut random);
    let cache = TempDir::new().unwrap();
    let settings = settings(&stand_in, cache.path());
    // The first bytes come, and then nothing does.
    let cut = |cut_at, cuts| Faults {
        cut_at: Some(cut_at),
        cuts,
        ..Faults::default()
    };
    stand_in.with(cut(0, 100));
    let error = fetch(&settings, "own/tiny:Q8_0").unwrap_err().to_string();
    let size = weights.len() - 5;
    assert!(
        error.contains(&format!("0 of {size} bytes came")),
        "{error}"
    );
    let blobs = settings.cache.join("models--own--tiny/blobs");
    let partial = fs::read_dir(&blobs).unwrap().map(|it| it.unwrap().path());
    let partial = partial
        .into_iter()
        .find(|it| it.to_string_lossy().ends_with(".incomplete"));
    let partial = partial.unwrap();
    fs::write(&partial, &weights[5..1005]).unwrap();
    stand_in.with(Faults::default());
    stand_in.requests();
    let file = fetch(&settings, "own/tiny:Q8_0").unwrap();
    assert_eq!(fs::read(file).unwrap(), &weights[5..]);
    let asked = stand_in.requests().concat().to_ascii_lowercase();
    assert!(asked.contains("range: bytes=1000-\r\n"), "{asked}");
    assert!(!partial.exists());
}

#[test]
fn contents_that_are_not_what_was_announced_are_refused() {
    let mut random = fercuda_trials::rng();
    let (stand_in, weights) = hub(&mut random);
    let refused = |faults: Faults| {
        let cache = TempDir::new().unwrap();
        stand_in.with(faults);
        let settings = settings(&stand_in, cache.path());
        let error = fetch(&settings, "own/tiny:Q8_0").unwrap_err();
        let folder = settings.cache.join("models--own--tiny/snapshots");
        assert!(!folder.join(COMMIT).join("x y/z-Q8_0.gguf").exists());
        let text = error.to_string();
        assert!(text.contains("\ntry: "), "{text}");
        (error, text)
    };
    let (error, text) = refused(Faults {
        is_wrong: true,
        ..Faults::default()
    });
    assert!(matches!(error, HubError::Damaged { .. }), "{text}");
    assert!(text.contains("another hash"), "{text}");
    // More is announced than comes, or less.
    let size = weights.len() as i64 - 5;
    let (error, text) = refused(Faults {
        announced: 7,
        ..Faults::default()
    });
    assert!(matches!(error, HubError::Damaged { .. }), "{text}");
    assert!(
        text.contains(&format!("{size} of {} bytes came", size + 7)),
        "{text}"
    );
    let (error, text) = refused(Faults {
        announced: -7,
        ..Faults::default()
    });
    assert!(matches!(error, HubError::Damaged { .. }), "{text}");
    for etag in ["../../x", "a/b", "", "a b", "..", "a.lock"] {
        let (error, text) = refused(Faults {
            etag: Some(etag.to_owned()),
            ..Faults::default()
        });
        assert!(matches!(error, HubError::Answer { .. }), "{text}");
    }
    for list in [
        "no JSON".to_owned(),
        "[]".to_owned(),
        "{\"sha\": \"../../..\", \"siblings\": []}".to_owned(),
        format!("{{\"sha\": {COMMIT:?}, \"siblings\": [{{\"rfilename\": \"../x.gguf\"}}]}}"),
        format!("{{\"sha\": {COMMIT:?}, \"siblings\": [{{\"rfilename\": \"/x.gguf\"}}]}}"),
        format!("{{\"sha\": {COMMIT:?}, \"siblings\": [{{\"rfilename\": 3}}]}}"),
    ] {
        let (error, text) = refused(Faults {
            list: Some(list.clone()),
            ..Faults::default()
        });
        assert!(matches!(error, HubError::Answer { .. }), "{list}: {text}");
    }
}

#[test]
fn a_token_goes_to_the_hub_alone_and_into_no_message() {
    let mut random = fercuda_trials::rng();
    let (stand_in, weights) = hub(&mut random);
    let (contents, _) = hub(&mut random);
    let contents_of = StandIn::new(&[("x y/z-Q8_0.gguf", &weights[5..])]);
    drop(contents);
    let guarded = |other: Option<&StandIn>| Faults {
        token: Some(SECRET.to_owned()),
        contents_at: other.map(|it| it.address.clone()),
        ..Faults::default()
    };
    let cache = TempDir::new().unwrap();
    let mut settings = settings(&stand_in, cache.path());
    stand_in.with(guarded(None));
    let error = fetch(&settings, "own/tiny:Q8_0").unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, HubError::Denied { status: 401, .. }),
        "{text}"
    );
    assert!(text.contains("try: the right name, or HF_TOKEN"), "{text}");
    settings.token = Some(HubToken::new("hf_wrong", "HF_TOKEN").unwrap());
    let error = fetch(&settings, "own/tiny:Q8_0").unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(
        text.contains("although a token was sent") && !text.contains("hf_wrong"),
        "{text}"
    );
    settings.token = Some(HubToken::new(SECRET, "HF_TOKEN").unwrap());
    assert!(!format!("{settings:?} {:?}", Hub::new(settings.clone())).contains(SECRET));
    // The content is at another host, which never gets the token.
    stand_in.with(guarded(Some(&contents_of)));
    let file = fetch(&settings, "own/tiny:q8_0").unwrap();
    assert_eq!(fs::read(file).unwrap(), &weights[5..]);
    let asked = contents_of.requests();
    assert!(asked.len() >= 2);
    assert!(
        !asked
            .concat()
            .to_ascii_lowercase()
            .contains("authorization")
    );
    assert!(stand_in.requests().concat().contains(SECRET));
    // A failure there shows neither the token nor the address with its signature.
    let cache = TempDir::new().unwrap();
    settings.cache = cache.path().join("hub");
    let gone = Faults {
        contents_at: Some("http://127.0.0.1:9".to_owned()),
        ..guarded(None)
    };
    stand_in.with(gone);
    let error = fetch(&settings, "own/tiny:q8_0").unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(!text.contains(SECRET) && !text.contains("secret"), "{text}");
    for token in ["", " ", "a b", "h\u{e9}", "a\r\nX: y"] {
        let error = HubToken::new(token, "HF_TOKEN").unwrap_err().to_string();
        assert!(error.starts_with("HF_TOKEN"), "{error}");
    }
}

#[test]
fn what_is_not_there_is_named() {
    let mut random = fercuda_trials::rng();
    let (stand_in, _) = hub(&mut random);
    let cache = TempDir::new().unwrap();
    let settings = settings(&stand_in, cache.path());
    let refused =
        |settings: &HubSettings, name: &str| fetch(settings, name).unwrap_err().to_string();
    let text = refused(&settings, "own/other");
    assert!(text.contains("has no model own/other"), "{text}");
    let text = refused(&settings, "own/tiny:Q2_K");
    assert!(text.contains("no GGUF file of the type \"Q2_K\""), "{text}");
    assert!(
        text.contains("own/tiny:FILE with one of: x y/z-Q8_0.gguf"),
        "{text}"
    );
    for (status, message) in [
        (403, "with status 403"),
        (404, "has no model"),
        (429, "too many requests"),
        (500, "status 500"),
        (418, "status 418"),
    ] {
        stand_in.with(Faults {
            status: Some(status),
            ..Faults::default()
        });
        let text = refused(&settings, "own/tiny");
        assert!(text.contains(message) && text.contains("\ntry: "), "{text}");
    }
    let mut away = settings.clone();
    away.endpoint = "http://127.0.0.1:9".to_owned();
    let text = refused(&away, "own/tiny");
    assert!(
        text.starts_with("cannot reach 127.0.0.1:9 for own/tiny: "),
        "{text}"
    );
    assert!(text.contains("try: a network, HF_ENDPOINT"), "{text}");
    away.is_offline = true;
    let text = refused(&away, "own/tiny");
    assert!(text.contains("HF_HUB_OFFLINE is set"), "{text}");
}

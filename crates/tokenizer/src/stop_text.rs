//! Texts that end an answer, sought in text that comes in parts.

/// Seeks texts that end an answer, and holds back what may be the beginning of one.
#[derive(Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Text that is not decided.
    held: String,
}

impl StopMatcher {
    /// A matcher of these texts, none of which is empty.
    pub fn new(stops: Vec<String>) -> StopMatcher {
        StopMatcher {
            stops,
            held: String::new(),
        }
    }

    /// Takes more text. Returns what is decided, and the text that ended it, if one did; of
    /// several, the one that begins first.
    pub fn push(&mut self, text: &str) -> (String, Option<String>) {
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|stop| {
            let at = self.held.find(stop.as_str())?;
            Some((at, stop))
        });
        if let Some((at, stop)) = found.min_by_key(|it| it.0) {
            let stop = stop.clone();
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), Some(stop));
        }
        let decided = self.held.len() - self.undecided();
        (self.held.drain(..decided).collect(), None)
    }

    /// Returns what is held: no more text comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Bytes at the end that are the beginning of a stop text.
    fn undecided(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let most = self.held.len().min(longest.saturating_sub(1));
        let is_beginning = |bytes: &usize| {
            let at = self.held.len() - bytes;
            let end = self.held.get(at..);
            end.is_some_and(|end| self.stops.iter().any(|stop| stop.starts_with(end)))
        };
        (1..=most).rev().find(is_beginning).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::StopMatcher;

    /// All parts of an answer, and what ended it.
    fn split(stops: &[&str], parts: &[&str]) -> (Vec<String>, Option<String>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|it| (*it).to_owned()).collect());
        let mut all = Vec::new();
        for part in parts {
            let (text, stop) = matcher.push(part);
            all.push(text);
            if stop.is_some() {
                return (all, stop);
            }
        }
        all.push(matcher.finish());
        (all, None)
    }

    #[test]
    fn stops_are_found_across_parts_and_beginnings_are_held_back() {
        let (parts, stop) = split(&["\n\nUser"], &["a\n", "\nUs", "er: b"]);
        assert_eq!(parts.concat(), "a");
        assert_eq!(stop.as_deref(), Some("\n\nUser"));
        let (parts, stop) = split(&["abcd"], &["xab", "cab", "c"]);
        assert_eq!(parts, ["x", "abc", "", "abc"]);
        assert_eq!(stop, None);
        let (parts, stop) = split(&["c", "bc"], &["ab", "c"]);
        assert_eq!(
            (parts.concat().as_str(), stop.as_deref()),
            ("a", Some("bc"))
        );
        let (parts, _) = split(&["\u{e9}x"], &["\u{e9}", "\u{e9}", "y"]);
        assert_eq!(parts.concat(), "\u{e9}\u{e9}y");
        let (parts, _) = split(&[], &["a", "b"]);
        assert_eq!(parts, ["a", "b", ""]);
    }

    #[test]
    fn parts_of_any_size_give_what_the_whole_gives() {
        let mut random = fercuda_trials::rng();
        for _ in 0..2000 {
            let mut word = |most: usize| -> String {
                let length = random.usize(1..=most);
                (0..length)
                    .map(|_| random.choice(['a', 'b', '\u{e9}']).unwrap_or('a'))
                    .collect()
            };
            let (stop, other, text) = (word(4), word(3), word(24));
            let found = [text.find(&stop), text.find(&other)];
            let whole = found.into_iter().flatten().min();
            let mut parts: Vec<String> = Vec::new();
            for it in text.chars() {
                match parts.last_mut() {
                    Some(part) if random.bool() => part.push(it),
                    _ => parts.push(it.to_string()),
                }
            }
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            let (given, stopped) = split(&[&stop, &other], &parts);
            let given = given.concat();
            assert_eq!(
                stopped.is_some(),
                whole.is_some(),
                "{stop} {other} {parts:?}"
            );
            let whole = whole.unwrap_or(text.len());
            // A stop text that is complete earlier may end it before one that begins earlier.
            assert!(text.starts_with(&given), "{stop} {other} {parts:?}");
            assert!(given.len() >= whole, "{stop} {other} {parts:?}");
        }
    }
}

//! Texts within grammars in the notation of Lark.

/// A text as Lark's grammars quote it.
pub fn lark_text(text: &str) -> String {
    let mut quoted = String::from("\"");
    for it in text.chars() {
        match it {
            '"' | '\\' => quoted.extend(['\\', it]),
            '\u{0}'..='\u{1f}' | '\u{7f}' => quoted.push_str(&format!("\\u{:04x}", u32::from(it))),
            it => quoted.push(it),
        }
    }
    quoted + "\""
}

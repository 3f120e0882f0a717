//! Text of a template, rewritten where minijinja reads it unlike jinja2.

/// Line ends as jinja2 has them, and `generation` blocks, which only mark what an assistant wrote,
/// as blocks with a scope.
pub(crate) fn rewritten(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = &source[..];
    while let Some(at) = rest.find("{%") {
        out.push_str(&rest[..at]);
        let tag = &rest[at..];
        let end = tag.find("%}").map_or(tag.len(), |it| it + 2);
        let (tag, behind) = tag.split_at(end);
        let inner = tag.trim_start_matches("{%").trim_end_matches("%}");
        let name = inner.trim_matches(['-', '+']).trim();
        match name {
            "generation" => out.push_str(&tag.replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            "raw" => {
                // Nothing in it is a tag; the newline behind the opening one stays in jinja2.
                let to = behind.find("endraw").unwrap_or(behind.len());
                out.push_str(tag);
                if behind.starts_with('\n') && !inner.ends_with('-') {
                    out.push('\n');
                }
                out.push_str(&behind[..to]);
                rest = &behind[to..];
                continue;
            }
            _ => out.push_str(tag),
        }
        rest = behind;
    }
    out.push_str(rest);
    out
}

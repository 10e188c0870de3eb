//! Checks that relative links in Markdown lead to an existing file.

use std::path::Path;

use crate::{Finding, Source};

/// Links of one Markdown file whose target does not exist.
pub fn check(root: &Path, source: &Source) -> Vec<Finding> {
    let file = root.join(&source.path);
    let here = file.parent().unwrap_or(root);
    let missing = |(line, target): (usize, &str)| {
        let path = target.split('#').next().unwrap_or_default();
        let base = if path.starts_with('/') { root } else { here };
        let exists = path.is_empty() || base.join(path.trim_start_matches('/')).exists();
        (!exists).then(|| Finding::new(&source.path, line, format!("{target} does not exist")))
    };
    targets(&source.text).into_iter().filter_map(missing).collect()
}

/// Line and target of every link to a file: `](target)` outside code.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (n, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for (at, _) in line.match_indices("](") {
            // An odd number of back quotes in front of the link means that it is inside code.
            let in_code = line[..at].matches('`').count() % 2 == 1;
            let rest = &line[at + 2..];
            let target = rest.split([')', ' ']).next().unwrap_or_default();
            if !in_code && !target.contains("://") && !target.starts_with("mailto:") {
                found.push((n + 1, target));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_links_to_files_count() {
        let text =
            "[a](b.md#c) [d](https://x/y) `[e](f)` [g](#h)\n```\n[i](j)\n```\n![k](l.png \"m\")";
        assert_eq!(targets(text), [(1, "b.md#c"), (1, "#h"), (5, "l.png")]);
    }

    #[test]
    fn a_link_to_nothing_is_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = "[a](src/main.rs) [b](src/none.rs) [c](/Cargo.toml) [d](#here)".to_owned();
        let found = check(root, &Source { path: "README.md".to_owned(), text });
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].what, "src/none.rs does not exist");
    }
}

//! Checks Markdown files. Relative links must lead to an existing file and to a heading in it. The
//! table of contents (`docs/SUMMARY.md`) must name every page of `docs/`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use crate::{Finding, Source};

/// The list of pages from which mdBook makes the site.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Returns links without a target, and pages that the summary does not name.
pub fn check(root: &Path, sources: &[Source]) -> Vec<Finding> {
    let anchors: BTreeMap<&str, BTreeSet<String>> =
        sources.iter().map(|s| (s.path.as_str(), headings(&s.text))).collect();
    let mut found: Vec<Finding> =
        sources.iter().flat_map(|source| dead(root, source, &anchors)).collect();
    found.extend(unlisted(sources));
    found
}

/// Returns the links in one file that lead to no existing file or heading.
fn dead(root: &Path, source: &Source, anchors: &BTreeMap<&str, BTreeSet<String>>) -> Vec<Finding> {
    let problem = |target: &str| {
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let file = resolve(&source.path, path);
        if !path.is_empty() && !root.join(&file).exists() {
            return Some(format!("{target} does not exist"));
        }
        let known = anchors.get(file.to_string_lossy().as_ref())?;
        (!anchor.is_empty() && !known.contains(anchor))
            .then(|| format!("{target}: that file has no heading `#{anchor}`"))
    };
    let links = targets(&source.text).into_iter();
    links
        .filter_map(|(line, target)| Some(Finding::new(&source.path, line, problem(target)?)))
        .collect()
}

/// Returns the file that a link of `page` names, relative to the root. An empty link target refers
/// to the page itself.
fn resolve(page: &str, target: &str) -> PathBuf {
    if target.is_empty() {
        return PathBuf::from(page);
    }
    let here = Path::new(page).parent().unwrap_or(Path::new(""));
    let path = match target.strip_prefix('/') {
        Some(path) => PathBuf::from(path),
        None => here.join(target),
    };
    let mut file = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if file.pop() => {}
            Component::CurDir => {}
            part => file.push(part),
        }
    }
    file
}

/// Returns the pages of `docs/` without an entry in the summary.
fn unlisted(sources: &[Source]) -> Vec<Finding> {
    let Some(summary) = sources.iter().find(|s| s.path == SUMMARY) else { return Vec::new() };
    let listed: BTreeSet<PathBuf> =
        targets(&summary.text).into_iter().map(|(_, target)| resolve(SUMMARY, target)).collect();
    let pages = sources.iter().filter(|s| s.path.starts_with("docs/") && s.path != SUMMARY);
    pages
        .filter(|page| !listed.contains(Path::new(&page.path)))
        .map(|page| Finding::new(&page.path, 0, format!("page without an entry in {SUMMARY}")))
        .collect()
}

/// Returns the anchors of all headings, as GitHub and mdBook make them. If two headings have equal
/// anchors, the second anchor gets the suffix `-1`.
fn headings(text: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (_, line) in outside_fences(text) {
        let Some((marks, title)) = line.split_once(' ') else { continue };
        if marks.is_empty() || marks.len() > 6 || marks.chars().any(|c| c != '#') {
            continue;
        }
        let name = anchor(title);
        let again = (1..).map(|n| format!("{name}-{n}"));
        if let Some(free) = std::iter::once(name.clone()).chain(again).find(|n| !all.contains(n)) {
            all.insert(free);
        }
    }
    all
}

/// Returns the anchor of a title. An anchor is in lower case, with hyphens for spaces. Of a title's
/// characters other than spaces, the anchor keeps only letters, digits, `-` and `_`. The target of
/// a link in a heading is not a part of the anchor.
fn anchor(title: &str) -> String {
    let mut words = String::new();
    let mut rest = title.trim();
    while let Some((before, after)) = rest.split_once("](") {
        words.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    words.push_str(rest);
    let keep = |c: char| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    };
    words.to_lowercase().chars().filter_map(keep).collect()
}

/// Returns the lines outside of fenced code blocks, with their line numbers from 1.
pub fn outside_fences(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(n, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((n + 1, line))
    })
}

/// Returns the line and the target of every Markdown link `](target)` outside code.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (n, line) in outside_fences(text) {
        for (at, _) in line.match_indices("](") {
            // An odd number of back quotes in front of the link means that it is inside code.
            let in_code = line[..at].matches('`').count() % 2 == 1;
            let rest = &line[at + 2..];
            let target = rest.split([')', ' ']).next().unwrap_or_default();
            if !in_code && !target.contains("://") && !target.starts_with("mailto:") {
                found.push((n, target));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn only_links_to_files_count() {
        let text =
            "[a](b.md#c) [d](https://x/y) `[e](f)` [g](#h)\n```\n[i](j)\n```\n![k](l.png \"m\")";
        assert_eq!(targets(text), [(1, "b.md#c"), (1, "#h"), (5, "l.png")]);
    }

    #[test]
    fn a_link_to_nothing_is_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = "# Here\n[a](src/main.rs) [b](src/none.rs) [c](/Cargo.toml) [d](#here) [e](#no)";
        let found = check(root, &[page("README.md", text)]);
        let what: Vec<&str> = found.iter().map(|f| f.what.as_str()).collect();
        assert_eq!(what, ["src/none.rs does not exist", "#no: that file has no heading `#no`"]);
    }

    #[test]
    fn headings_become_anchors_as_on_the_site() {
        let text =
            "# A `b_c`: d, e\n## Two  words\n```sh\n# comment\n```\n## [x](y.md) z\n## X z\n";
        let expected = ["a-b_c-d-e", "two--words", "x-z", "x-z-1"];
        assert_eq!(headings(text), expected.map(str::to_owned).into());
    }

    #[test]
    fn a_page_that_the_summary_leaves_out_is_found() {
        let pages = [
            page(SUMMARY, "[a](guides/a.md)"),
            page("docs/guides/a.md", ""),
            page("docs/guides/b.md", ""),
            page("README.md", ""),
        ];
        let found = unlisted(&pages);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "docs/guides/b.md");
    }
}

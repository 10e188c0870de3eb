//! The filter of the command line: `key=value` pairs, which the daemon gets as matches of rules.
//!
//! # Approach
//!
//! The keys are those of a rule's `match`. In addition, `host`, `mac` and `port` mean the source or
//! the destination. Each such key doubles the number of matches, of which a frame must have one.

use anyhow::{Context as _, Result, bail, ensure};

use crate::pairs::Pairs;

/// Keys that mean the source or the destination.
const EITHER: [(&str, [&str; 2]); 3] =
    [("host", ["src", "dst"]), ("mac", ["src_mac", "dst_mac"]), ("port", ["src_port", "dst_port"])];

/// Returns the matches of a filter as TOML texts. Returns no match for an empty filter.
///
/// # Errors
/// Returns an error if the text is not a list of `key=value` pairs, each with another key.
pub(super) fn matches(text: &str) -> Result<Vec<String>> {
    let mut alternatives = vec![Vec::<String>::new()];
    let mut seen = Vec::new();
    for pair in text.split([' ', ',', '\t']).filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            bail!(
                "filter {pair:?}: not of the form key=value; write for example \
                 \"proto=tcp port=80\" or \"host=10.0.0.1\""
            );
        };
        // Without its value, the pair would match all frames.
        ensure!(!value.is_empty(), "filter {pair:?}: the value is missing; write {key}=VALUE");
        ensure!(!seen.contains(&key), "filter: `{key}` occurs twice; write each key once");
        seen.push(key);
        let either = EITHER.iter().find(|(name, _)| *name == key).map(|(_, keys)| keys);
        let keys = either.map_or(vec![key], |keys| keys.to_vec());
        let with = |pairs: &Vec<String>| {
            let pairs = pairs.clone();
            keys.iter()
                .map(move |key| [&pairs[..], &[format!("{key}={value}")]].concat())
                .collect::<Vec<_>>()
        };
        alternatives = alternatives.iter().flat_map(with).collect();
    }
    ensure!(
        !seen.contains(&"port") || seen.contains(&"proto"),
        "filter: `port` without `proto`; add proto=tcp, proto=udp or proto=sctp"
    );
    if alternatives == [Vec::<String>::new()] {
        return Ok(Vec::new());
    }
    let read = |pairs: &Vec<String>| -> Result<String> {
        Ok(Pairs::parse(pairs).context("filter")?.table.to_string())
    };
    alternatives.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_either_direction_become_alternatives() {
        assert_eq!(matches("").unwrap(), Vec::<String>::new());
        assert_eq!(
            matches("proto=tcp, port=80").unwrap(),
            ["proto = \"tcp\"\nsrc_port = 80\n", "dst_port = 80\nproto = \"tcp\"\n"]
        );
        assert_eq!(matches("host=10.0.0.1 proto=udp port=1-9").unwrap().len(), 4);
        let error = matches("tcp port 80").unwrap_err().to_string();
        assert!(error.contains("key=value"), "{error}");
    }

    #[test]
    fn a_filter_that_would_match_other_frames_is_refused() {
        for (text, problem) in [
            ("host=", "filter \"host=\": the value is missing; write host=VALUE"),
            ("proto=tcp port=", "filter \"port=\": the value is missing"),
            ("src=1.2.3.4 src=1.2.3.5", "filter: `src` occurs twice"),
            ("host=1.2.3.4 host=1.2.3.5", "filter: `host` occurs twice"),
            ("src=1.2.3.4 host=1.2.3.5", "filter: key 'src': given twice"),
            ("port=80", "filter: `port` without `proto`; add proto=tcp"),
            ("=x", "filter: argument '=x': no key"),
        ] {
            let error = format!("{:#}", matches(text).unwrap_err());
            assert!(error.starts_with(problem), "{text}: {error}");
        }
    }
}

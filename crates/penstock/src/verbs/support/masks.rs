//! Replaces secrets in the parts of a bundle with asterisks.
//!
//! # Approach
//!
//! A secret is the value of a key such as `password`, whatever the format of the text is. The words
//! of a key decide ([`is_secret`]), so `redis_password`, `apiKey` and `--auth-token` are found and
//! `token_bucket` is not. A key such as `password_file` names a file and keeps its value.
//!
//! - A TOML text is parsed, and each value under a secret key is replaced where it is. Tables such
//!   as `[credentials]` are covered too. Comments and line numbers remain.
//! - A JSON text is parsed, and the masked text is printed from the parsed value.
//! - In all other texts, and in TOML and JSON that do not parse, patterns find the keys. A value in
//!   quotes or brackets ends at its closing quote or bracket, also in another line. If the end of a
//!   value is unclear, too much is masked, not too little.
//!
//! # Limits
//!
//! A secret without a key, in an unknown key or in the middle of a sentence is not found.

use regex::{Captures, Regex};
use serde_json::Value;
use toml::de::{DeTable, DeValue};

const MASK: &str = "********";
const QUOTED: &str = "\"********\"";

/// Largest length in bytes of a list or table in a text that is not parsed.
const BRACKETS_MAX: usize = 4096;
/// Largest distance in bytes between the beginning of a line and a key that begins it.
const INDENT_MAX: usize = 256;

/// Texts that make a key secret wherever they are in the key, without `_` and `-`.
const SECRETS: [&str; 9] = [
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "privatekey",
    "apikey",
    "secretkey",
    "accesskey",
    "credential",
];
/// Ends of the last word of a secret key. In `token_bucket` and `auth_mode`, the word is not last.
const LAST: [&str; 9] = [
    "secret",
    "secrets",
    "token",
    "auth",
    "authorization",
    "psk",
    "pwd",
    // The password of SNMP 1 and 2c.
    "community",
    "communities",
];
/// Last words of a secret key. Other words, such as `bypass`, may end with them.
const LAST_WHOLE: [&str; 2] = ["pass", "pw"];
/// Words after which the word before them decides, as in `token_value`.
const TAILS: [&str; 9] = ["value", "values", "text", "data", "base64", "hex", "old", "new", "id"];
/// Last words of a key that names a file.
const FILES: [&str; 6] = ["file", "files", "path", "paths", "dir", "directory"];
/// Options of commands such as curl whose value is `user:password`.
const USERS: [&str; 4] = ["-u", "-U", "--user", "--proxy-user"];
/// Schemes of the header `Authorization`, after which the secret follows.
const SCHEMES: [&str; 6] = ["bearer", "basic", "digest", "negotiate", "token", "apikey"];

/// Patterns of secrets.
#[derive(Debug)]
pub struct Masks {
    address: Regex,
    block: Regex,
    block_end: Regex,
    assignment: Regex,
    option: Regex,
    bearer: Regex,
    user: Regex,
    community: Regex,
}

impl Masks {
    pub fn new() -> Self {
        let pattern = |text: &str| {
            Regex::new(text).unwrap_or_else(|error| unreachable!("the pattern is valid: {error}"))
        };
        Self {
            // The user and password of an address such as redis://user:password@host. A password
            // may contain `/` and `@`, so the last `@` counts.
            address: pattern(r#"(://)[^\s"]*@"#),
            block: pattern(
                r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\z)",
            ),
            // The rest of a block whose beginning was cut off.
            block_end: pattern(r"(?s)\A.*?-----END [A-Z ]*PRIVATE KEY-----"),
            // A key, also in quotes, with `=` or `:`.
            assignment: pattern(
                r#"(?P<key>[A-Za-z0-9_.-]+)\\*["']?[ \t]*(?P<sign>=>|:=|==?|:)[ \t]*"#,
            ),
            // An option of a command with its value in the next word, also in a list of words.
            option: pattern(r#"(?P<key>--[A-Za-z0-9_-]+)(?P<sign>\\*["'],\s*|[ \t]+)"#),
            bearer: pattern(r#"(?i)\b(bearer)[ \t]+[^\s"',;]+"#),
            // An option with `user:password`, also behind other options as in `curl -su u:p`, or in
            // a list of words. Curl also takes the value without a blank.
            user: pattern(concat!(
                r#"((?:\bcurl\b[^\n]*?[ \t]-[A-Za-z]*[uU][ \t=]*|"#,
                r#"(?:^|[\s"'`])(?:-[uU]|--(?:proxy-)?user)(?:\\*["'],\s*|[ \t=]+))\\*)"#,
                r#"(?:"[^"\s:]*:[^"\n]*"|'[^'\s:]*:[^'\n]*'|"#,
                r#"[^\s"':]*:(?:"[^"\n]*"?|'[^'\n]*'?|[^\s"'`]+))"#
            )),
            // A community in the configuration of a daemon or switch, or of a command of SNMP.
            community: pattern(concat!(
                r#"(?i)(\b(?:ro|rw|trap)?community6?[ \t]+|\bsnmp[a-z]*[^\n]*?[ \t]-c[ \t]*)"#,
                r#"(?:"[^"\n]*"|'[^'\n]*'|[^\s"'=:,;)\]}][^\s"']*)"#
            )),
        }
    }

    /// Masks a part of the bundle. The name of the part gives its format.
    pub fn part(&self, name: &str, text: &str) -> String {
        let masked = match name.rsplit('.').next() {
            // Comments and addresses remain for the patterns.
            Some("toml") => toml_masked(text).map(|masked| self.text(&masked)),
            Some("json") => self.json_masked(text),
            _ => None,
        };
        masked.unwrap_or_else(|| self.text(text))
    }

    /// Masks a text that is not parsed.
    fn text(&self, text: &str) -> String {
        let text = self.block.replace_all(text, MASK);
        let text = self.block_end.replace(&text, MASK);
        let text = self.address.replace_all(&text, format!("${{1}}{MASK}@"));
        let text = self.user.replace_all(&text, format!("${{1}}{QUOTED}"));
        let text = self.community.replace_all(&text, format!("${{1}}{QUOTED}"));
        let text = masked_values(&text, &self.assignment);
        let text = masked_values(&text, &self.option);
        self.bearer.replace_all(&text, format!("${{1}} {MASK}")).into_owned()
    }

    /// Masks a JSON text. Returns `None` if the text does not parse.
    fn json_masked(&self, text: &str) -> Option<String> {
        let mut value: Value = serde_json::from_str(text).ok()?;
        self.json(&mut value, false);
        Some(format!("{value:#}\n"))
    }

    /// Masks a JSON value. `secret` says that the value belongs to a secret key.
    fn json(&self, value: &mut Value, secret: bool) {
        match value {
            Value::Object(members) => {
                for (key, value) in members {
                    let number = value.is_number();
                    self.json(value, inherits(secret, key) || is_secret(key, number));
                }
            }
            Value::Array(values) => {
                // A command line: `--password` and its value are two elements.
                let (mut next, mut user) = (false, false);
                for value in values {
                    let word = value.as_str().unwrap_or_default();
                    let option = Some(word).filter(|word| word.starts_with("--"));
                    let login = user && word.contains(':');
                    let masked = secret || login || next && option.is_none();
                    next = option.is_some_and(|word| !word.contains('=') && is_secret(word, false));
                    user = USERS.contains(&word);
                    self.json(value, masked);
                }
            }
            Value::String(_) | Value::Number(_) if secret => *value = Value::from(MASK),
            Value::String(text) => *text = self.text(text),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Whether a value under a secret key remains secret under `key` in that value.
fn inherits(secret: bool, key: &str) -> bool {
    secret && !names_file(&words(key))
}

/// Whether the values of a key are secret. A number of `tokens` is a count.
fn is_secret(key: &str, number: bool) -> bool {
    let words = words(key);
    if names_file(&words) {
        return false;
    }
    let joined = words.concat();
    if SECRETS.iter().any(|secret| joined.contains(secret)) {
        return true;
    }
    let mut last = words.iter().rev().skip_while(|word| TAILS.contains(&word.as_str()));
    let Some(last) = last.next() else { return false };
    LAST.iter().any(|end| last.ends_with(end))
        || LAST_WHOLE.contains(&last.as_str())
        || !number && last.ends_with("tokens")
}

fn names_file(words: &[String]) -> bool {
    words.last().is_some_and(|last| FILES.contains(&last.as_str()))
}

/// Returns the words of a key in lower case, without numbers at their ends. Words end at `_`, `-`
/// and other signs, and before a capital letter.
fn words(key: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut small = false;
    for c in key.chars() {
        if !c.is_ascii_alphanumeric() || small && c.is_ascii_uppercase() {
            words.push(String::new());
        }
        small = c.is_ascii_lowercase();
        if let Some(word) = words.last_mut().filter(|_| c.is_ascii_alphanumeric()) {
            word.push(c.to_ascii_lowercase());
        }
    }
    for word in words.iter_mut().filter(|word| !TAILS.contains(&word.as_str())) {
        word.truncate(word.trim_end_matches(char::is_numeric).len());
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Replaces the values of secret keys in a TOML text. Returns `None` if the text does not parse.
fn toml_masked(text: &str) -> Option<String> {
    let parsed = DeTable::parse(text).ok()?;
    let mut secrets = Vec::new();
    add_table(&mut secrets, parsed.get_ref(), false);
    secrets.sort_by_key(|span| span.start);
    let mut masked = String::with_capacity(text.len());
    let mut at = 0;
    for span in secrets {
        masked.push_str(text.get(at..span.start)?);
        masked.push_str(QUOTED);
        at = span.end;
    }
    masked.push_str(text.get(at..)?);
    Some(masked)
}

fn add_table(secrets: &mut Vec<std::ops::Range<usize>>, table: &DeTable<'_>, secret: bool) {
    for (key, value) in table {
        let (key, number) = (key.get_ref(), matches!(value.get_ref(), DeValue::Integer(_)));
        add_value(secrets, value, inherits(secret, key) || is_secret(key, number));
    }
}

fn add_value(
    secrets: &mut Vec<std::ops::Range<usize>>,
    value: &toml::Spanned<DeValue<'_>>,
    secret: bool,
) {
    match value.get_ref() {
        DeValue::Table(table) => add_table(secrets, table, secret),
        DeValue::Array(values) => {
            for value in values {
                add_value(secrets, value, secret);
            }
        }
        DeValue::Boolean(_) => {}
        DeValue::String(_) | DeValue::Integer(_) | DeValue::Float(_) | DeValue::Datetime(_) => {
            if secret {
                secrets.push(value.span());
            }
        }
    }
}

/// Replaces the values that follow a secret key. The pattern finds the key and all that is between
/// the key and its value.
fn masked_values(text: &str, pattern: &Regex) -> String {
    let mut masked = String::with_capacity(text.len());
    // All text in front of `copied` is in `masked`, and the search goes on at `from`.
    let (mut copied, mut from) = (0, 0);
    while let Some(found) = pattern.captures_at(text, from) {
        let start = found.get_match().end();
        let end = start + secret_len(text, &found);
        if end == start {
            // The value may have keys of its own.
            from = start;
            continue;
        }
        masked.push_str(&text[copied..start]);
        masked.push_str(QUOTED);
        (copied, from) = (end, end);
    }
    masked.push_str(&text[copied..]);
    masked
}

/// Length of the secret value after a match of a pattern. 0 if there is none.
fn secret_len(text: &str, found: &Captures<'_>) -> usize {
    let (key, sign) = (&found["key"], &found["sign"]);
    let start = found.get_match().start();
    let value = &text[found.get_match().end()..];
    let number = value.starts_with(|c: char| c.is_ascii_digit());
    // `auth::login` is a path in Rust, and `--token --verbose` has no value.
    let no_value = if key.starts_with("--") && !sign.starts_with([':', '=']) {
        value.starts_with('-')
    } else {
        sign == ":" && value.starts_with(':')
    };
    if no_value || !is_secret(key, number) {
        return 0;
    }
    let before = &text[text.floor_char_boundary(start.saturating_sub(INDENT_MAX))..start];
    let before = before.rsplit('\n').next().unwrap_or_default();
    let begins_line = before.chars().all(|c| " \t\"'#;-".contains(c));
    value_len(value, begins_line)
}

/// Length of the value at the beginning of `text`. A value without quotes ends at white space. In a
/// line that begins with the key, the value ends with the line.
fn value_len(text: &str, begins_line: bool) -> usize {
    for quotes in ["\"\"\"", "'''"] {
        if let Some(inner) = text.strip_prefix(quotes) {
            return inner.find(quotes).map_or(text.len(), |at| at + 2 * quotes.len());
        }
    }
    // A quote that is itself in quotes, as in JSON within JSON.
    let slashes = text.len() - text.trim_start_matches('\\').len();
    if slashes > 0 && text[slashes..].starts_with('"') {
        let (quote, inner) = text.split_at(slashes + 1);
        return inner.find(quote).map_or_else(|| line_len(text), |at| at + 2 * quote.len());
    }
    match text.as_bytes().first() {
        Some(b'"') => quoted_len(text),
        Some(b'\'') => {
            let end = text[1..].find(['\'', '\r', '\n']).map_or(text.len(), |at| at + 1);
            end + usize::from(text[end..].starts_with('\''))
        }
        Some(b'[' | b'{') => brackets_len(text),
        _ => bare_len(text, begins_line),
    }
}

/// Length of the rest of a line.
fn line_len(text: &str) -> usize {
    text.find(['\r', '\n']).unwrap_or(text.len())
}

/// Length of a text in double quotes, in which a backslash precedes a quote that does not end it.
/// Without an end, the rest of the line counts.
fn quoted_len(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            b'\r' | b'\n' => return at,
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of a list or table with all that it contains. Without an end within [`BRACKETS_MAX`], all
/// text up to this limit counts.
fn brackets_len(text: &str) -> usize {
    let limit = text.floor_char_boundary(BRACKETS_MAX);
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(byte) = text.as_bytes()[..limit].get(at) {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth -= 1,
            b'"' => at += quoted_len(&text[at..limit]) - 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return at;
        }
    }
    limit
}

/// Length of a value without quotes. Words such as `true` are no secrets.
fn bare_len(text: &str, begins_line: bool) -> usize {
    let word = text.split(char::is_whitespace).next().unwrap_or_default();
    let scheme = SCHEMES.contains(&word.to_ascii_lowercase().as_str());
    let value = if begins_line {
        text[..line_len(text)].trim_end()
    } else if scheme {
        let line = &text[..line_len(text)];
        line.split(['"', '\'']).next().unwrap_or_default().trim_end()
    } else {
        word
    };
    let value = value.trim_end_matches(['"', '\'', ',', ';', ')', ']', '}', '\\']);
    let plain = ["", "true", "false", "null", "none", "None"];
    if plain.contains(&value) { 0 } else { value.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(part: &str, cases: &[(&str, &str)]) {
        let masks = Masks::new();
        for (text, masked) in cases {
            assert_eq!(masks.part(part, text), *masked, "{text}");
        }
    }

    #[test]
    fn the_words_of_a_key_decide() {
        for key in "password db_secret PSK api_key apikey apiKey secret-key access_key credential \
                    credentials auth --auth-token passphrase token_value authToken2 secret_id \
                    AWS_SECRET_ACCESS_KEY x.password Authorization pass db_pass pw passcode"
            .split(' ')
        {
            assert!(is_secret(key, false), "{key}");
        }
        for key in "tokens_per_second token_bucket bucket password_file tokenPath key secret_dir \
                    auth_mode author - id cert bypass passes"
            .split(' ')
        {
            assert!(!is_secret(key, false), "{key}");
        }
        assert!(is_secret("tokens", false) && !is_secret("tokens", true));
    }

    #[test]
    fn values_of_a_toml_file_are_masked_in_every_form() {
        check(
            "host.toml",
            &[
                ("password = \"geheim\" # x\n", "password = \"********\" # x\n"),
                ("a = { token = 'x y', b = 1 }", "a = { token = \"********\", b = 1 }"),
                ("psk = \"\"\"\na\nb\"\"\"\nn = 1\n", "psk = \"********\"\nn = 1\n"),
                ("psk = '''a\n\"b'''\nn = 1\n", "psk = \"********\"\nn = 1\n"),
                ("token = [\"a\",\n \"b\"]\n", "token = \"********\"\n"),
                ("secret = { value = \"x\" }\n", "secret = \"********\"\n"),
                ("[auth]\nuser = 'u'\non = true\n", "[auth]\nuser = \"********\"\non = true\n"),
                ("[[credentials]]\na.b = 5\n", "[[credentials]]\na.b = \"********\"\n"),
                ("[auth]\npassword_file = \"/p\"\n", "[auth]\npassword_file = \"/p\"\n"),
                ("\"api key\" = \"ä\"\n'ü' = 1\n", "\"api key\" = \"********\"\n'ü' = 1\n"),
                ("url = \"redis://u:p/a@s@h:1\"", "url = \"redis://********@h:1\""),
                ("# password = \"old\"\nn = 1\n", "# password = \"********\"\nn = 1\n"),
                ("token_bucket = 5\nbucket = 6\n", "token_bucket = 5\nbucket = 6\n"),
                ("tokens_per_second = 5", "tokens_per_second = 5"),
                ("password_file = \"/etc/p\"", "password_file = \"/etc/p\""),
            ],
        );
    }

    #[test]
    fn values_of_a_toml_file_with_mistakes_are_masked() {
        check(
            "host.toml",
            &[
                ("= 1\npsk = \"\"\"\na\nb\"\"\"\nn = 1\n", "= 1\npsk = \"********\"\nn = 1\n"),
                ("= 1\npsk = '''a\nb'''\n", "= 1\npsk = \"********\"\n"),
                ("= 1\ntoken = [\"a]\",\n \"b\"]\nn = 1\n", "= 1\ntoken = \"********\"\nn = 1\n"),
                ("= 1\nsecret = { v = { w = 'x' } }\n", "= 1\nsecret = \"********\"\n"),
                ("password = \"open\nn = 1\n", "password = \"********\"\nn = 1\n"),
                ("token = [\"open\"\nn = 1\n", "token = \"********\""),
            ],
        );
    }

    #[test]
    fn values_of_json_are_masked() {
        let masks = Masks::new();
        let masked = |text: &str| {
            let part = masks.part("state/host.json", text);
            serde_json::from_str::<Value>(&part).unwrap()
        };
        let text = r#"{
            "token": ["a", {"b": 5}], "private_key": "a\"b", "auth": null, "tokens": 7,
            "command": ["x", "--password", "p", "--token=t", "last"],
            "inner": "{\"apiKey\": \"a\"}", "url": "http://u:p@h", "token_bucket": {"bucket": 1},
            "credentials": {"on": true, "password_file": "/p", "user": "u"}
        }"#;
        let expected = serde_json::json!({
            "token": [MASK, {"b": MASK}], "private_key": MASK, "auth": null, "tokens": 7,
            "command": ["x", "--password", MASK, "--token=\"********\"", "last"],
            "inner": "{\"apiKey\": \"********\"}", "url": "http://********@h",
            "token_bucket": {"bucket": 1},
            "credentials": {"on": true, "password_file": "/p", "user": MASK},
        });
        assert_eq!(masked(text), expected);
        // A part that was cut does not parse.
        let cut = masks.part("a.json", "\"x\": 1,\n\"token\": [\n\"a\"\n],\n\"n\": 1}");
        assert_eq!(cut, "\"x\": 1,\n\"token\": \"********\",\n\"n\": 1}");
    }

    #[test]
    fn secrets_in_logs_are_masked() {
        check(
            "log.txt",
            &[
                ("db_secret=abc\nnext = 1", "db_secret=\"********\"\nnext = 1"),
                ("at 1 Authorization: Bearer xyz", "at 1 Authorization: \"********\""),
                ("-H 'Authorization: Basic eA==' u", "-H 'Authorization: \"********\"' u"),
                ("got Bearer xyz, next", "got Bearer ********, next"),
                ("run --password x --n 1", "run --password \"********\" --n 1"),
                ("run --token=x --n 1", "run --token=\"********\" --n 1"),
                ("run --token --n 1", "run --token --n 1"),
                ("run --password-file x", "run --password-file x"),
                ("x {\"api_key\":\"a\",\"n\":1}", "x {\"api_key\":\"********\",\"n\":1}"),
                ("x {\\\"psk\\\":\\\"a b\\\",1", "x {\\\"psk\\\":\"********\",1"),
                ("passphrase: two words\nn: 1", "passphrase: \"********\"\nn: 1"),
                ("to redis://user:pa/ss@host now", "to redis://********@host now"),
                ("to redis://user:p@ss@host now", "to redis://********@host now"),
                ("at penstock::auth::x: y", "at penstock::auth::x: y"),
                ("tokens=5 token_bucket=6 auth=none", "tokens=5 token_bucket=6 auth=none"),
                ("-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\n", "********\n"),
                ("MII\n-----END PRIVATE KEY-----\nn", "********\nn"),
            ],
        );
    }

    #[test]
    fn logins_of_commands_are_masked() {
        check(
            "host.toml",
            &[
                (
                    "# curl -u a:geheim http://h\nn = 1\n",
                    "# curl -u \"********\" http://h\nn = 1\n",
                ),
                ("# curl -sSua:geheim h:80\n", "# curl -sSu\"********\" h:80\n"),
                ("# curl h -su 'a:b c' -X PUT\n", "# curl h -su \"********\" -X PUT\n"),
                ("# get --user=a:\"b c\" h\n", "# get --user=\"********\" h\n"),
                ("run = \"x --proxy-user a:b h\"\n", "run = \"x --proxy-user \"********\" h\"\n"),
                ("run = [\"-U\", \"a:b\", \"h\"]\n", "run = [\"-U\", \"********\", \"h\"]\n"),
                (
                    "# ps -u root h:1, journalctl -u penstock\n",
                    "# ps -u root h:1, journalctl -u penstock\n",
                ),
            ],
        );
        let masked = Masks::new().part("a.json", r#"["curl", "-u", "a:b", "-u", "c", "h:1"]"#);
        let masked: Value = serde_json::from_str(&masked).unwrap();
        assert_eq!(masked, serde_json::json!(["curl", "-u", MASK, "-u", "c", "h:1"]));
    }

    #[test]
    fn communities_of_snmp_are_masked() {
        check(
            "host.toml",
            &[
                ("community = \"geheim\"\n", "community = \"********\"\n"),
                ("[snmp]\nrw-communities = ['a']\n", "[snmp]\nrw-communities = \"********\"\n"),
                ("# snmp_community: geheim\n", "# snmp_community: \"********\"\n"),
                ("# rocommunity geheim 10.0.0.1\n", "# rocommunity \"********\" 10.0.0.1\n"),
                (
                    "# snmp-server community \"g h\" RO\n",
                    "# snmp-server community \"********\" RO\n",
                ),
                ("# snmpwalk -v 2c -c geheim h\n", "# snmpwalk -v 2c -c \"********\" h\n"),
            ],
        );
    }
}

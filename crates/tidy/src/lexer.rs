//! Splits Rust text into code, comments and string literals, line by line. Checks of code can
//! ignore words in strings and comments, because the lexer separates code from strings and
//! comments.

/// Marks the end of a literal in [`Line::text`].
const END: char = '\0';

/// One line, split into code, comments and string literals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Code, without the contents of string and character literals.
    pub code: String,
    pub comment: String,
    /// Contents of the line's string literals, each followed by the character [`END`]. Each escape
    /// sequence in a string literal is replaced by a space.
    text: String,
}

impl Line {
    /// Returns true if the line contains only a comment.
    pub fn is_comment(&self) -> bool {
        self.code.trim().is_empty() && !self.comment.trim().is_empty()
    }
}

enum State {
    Code,
    LineComment,
    BlockComment { depth: usize },
    Str,
    RawStr { hashes: usize },
}

/// Splits each line of `text` into code, comments and string literals.
pub fn split(text: &str) -> Vec<Line> {
    let chars: Vec<char> = text.chars().collect();
    let mut lines = vec![Line::default()];
    let mut state = State::Code;
    let mut at = 0;
    while at < chars.len() {
        let c = chars[at];
        if c == '\n' {
            if matches!(state, State::LineComment) {
                state = State::Code;
            }
            lines.push(Line::default());
            at += 1;
            continue;
        }
        let line = lines.last_mut().expect("starts with one line and only grows");
        at += match &mut state {
            State::Code => code(&chars, at, line, &mut state),
            State::LineComment => {
                line.comment.push(c);
                1
            }
            State::BlockComment { depth } => {
                line.comment.push(c);
                match (c, chars.get(at + 1)) {
                    ('*', Some('/')) => {
                        *depth -= 1;
                        if *depth == 0 {
                            state = State::Code;
                        }
                        2
                    }
                    ('/', Some('*')) => {
                        *depth += 1;
                        2
                    }
                    _ => 1,
                }
            }
            State::Str => string(&chars, at, line, &mut state),
            State::RawStr { hashes } => {
                let n = *hashes;
                if c == '"' && chars[at + 1..].iter().take_while(|c| **c == '#').count() >= n {
                    line.code.push('"');
                    line.text.push(END);
                    state = State::Code;
                    1 + n
                } else {
                    line.text.push(c);
                    1
                }
            }
        };
    }
    if text.ends_with('\n') {
        lines.pop();
    }
    lines
}

/// Reads the next character or escape sequence of a string literal, at `chars[at]`. Returns the
/// number of characters that were read.
fn string(chars: &[char], at: usize, line: &mut Line, state: &mut State) -> usize {
    match chars[at] {
        // An escaped line end must still count as a line.
        '\\' if chars.get(at + 1) != Some(&'\n') => {
            line.text.push(' ');
            return 2;
        }
        '\\' => {}
        '"' => {
            line.code.push('"');
            line.text.push(END);
            *state = State::Code;
        }
        c => line.text.push(c),
    }
    1
}

/// Returns every string literal with the line where it begins. In a literal, each run of white
/// space becomes one space.
pub fn literals(lines: &[Line]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (n, line) in lines.iter().enumerate() {
        for c in line.text.chars() {
            let (start, mut literal) = open.take().unwrap_or((n + 1, String::new()));
            if c == END {
                let words: Vec<&str> = literal.split_whitespace().collect();
                found.push((start, words.join(" ")));
            } else {
                literal.push(c);
                open = Some((start, literal));
            }
        }
        if let Some((_, literal)) = &mut open {
            literal.push(' ');
        }
    }
    found
}

/// Reads the next piece of code, at `chars[at]`: a character or the start of a comment or literal.
/// Returns the number of characters of code that were read.
fn code(chars: &[char], at: usize, line: &mut Line, state: &mut State) -> usize {
    let c = chars[at];
    let next = chars.get(at + 1).copied();
    match c {
        '/' if next == Some('/') => {
            *state = State::LineComment;
            2
        }
        '/' if next == Some('*') => {
            *state = State::BlockComment { depth: 1 };
            2
        }
        '"' => {
            line.code.push('"');
            *state = State::Str;
            1
        }
        'r' if !ends_in_word(line) || line.code.ends_with(['b', 'c']) => {
            let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
            line.code.push('r');
            if chars.get(at + 1 + hashes) == Some(&'"') {
                line.code.push('"');
                *state = State::RawStr { hashes };
                2 + hashes
            } else {
                1
            }
        }
        '\'' => {
            let width = literal_width(&chars[at..]);
            line.code.push('\'');
            width
        }
        _ => {
            line.code.push(c);
            1
        }
    }
}

fn ends_in_word(line: &Line) -> bool {
    line.code.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_')
}

/// Returns the width of the character literal at the start of `chars`, in characters. Returns 1 for
/// a quote that begins a lifetime, such as `'a`.
fn literal_width(chars: &[char]) -> usize {
    match (chars.get(1), chars.get(2)) {
        (Some('\\'), _) => {
            // The escaped character itself may be a quote.
            let end = chars.iter().skip(3).position(|c| *c == '\'');
            end.map_or(1, |n| n + 4)
        }
        (Some(_), Some('\'')) => 3,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(text: &str) -> Vec<String> {
        split(text).into_iter().map(|l| l.code).collect()
    }

    #[test]
    fn strings_and_comments_are_no_code() {
        assert_eq!(code_of("a(\"unsafe {\"); // unsafe {\n"), ["a(\"\"); "]);
        assert_eq!(code_of("x /* a /* b */ c */ y"), ["x  y"]);
        assert_eq!(code_of("r#\"a \" b\"# + r\"\\\" + br\"x\""), ["r\"\" + r\"\" + br\"\""]);
    }

    #[test]
    fn a_literal_quote_does_not_open_a_string() {
        assert_eq!(code_of("f('\"', b'\\'', '\\u{41}') + 1"), ["f(', b', ') + 1"]);
        assert_eq!(code_of("fn f<'a>(x: &'a str) {}"), ["fn f<'a>(x: &'a str) {}"]);
    }

    #[test]
    fn literals_are_found_with_their_lines() {
        let lines = split("f(\"a b\",\n  \"c \\\n   d\"); // \"e\"\nr#\"\"f\"\"#\n\"\"");
        let found = literals(&lines);
        let expected = [(1, "a b"), (2, "c d"), (4, "\"f\""), (5, "")];
        assert_eq!(found, expected.map(|(n, text)| (n, text.to_owned())));
    }

    #[test]
    fn lines_stay_lines() {
        let lines = split("a \"x\\\n y\" b\n/* c\nd */ e\n");
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[1].code, "\" b");
        assert!(lines[2].is_comment());
        assert_eq!(lines[3].code, " e");
    }
}

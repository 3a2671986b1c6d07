//! Cleans texts that come from a registry before they go into conditions, Events, logs and labels.
//!
//! Invariant: what comes out is one line of printable characters, at most [`LONGEST`] characters.
//! Absent on purpose: translation; operators know their registry's own words.

use crate::text::one_line;

/// Longer texts are cut: a condition shows one sentence.
pub const LONGEST: usize = 200;

/// One printable, bounded line of `text`.
pub fn bounded(text: &str) -> String {
    let mut line = String::new();
    let text: String = one_line(text).collect();
    let mut words = text.split_whitespace().peekable();
    let mut left = LONGEST;
    while let Some(word) = words.next() {
        let fits: String = word.chars().take(left).collect();
        left = left.saturating_sub(fits.chars().count() + 1);
        line.push_str(&fits);
        if left == 0 {
            line.push('…');
            break;
        }
        if words.peek().is_some() {
            line.push(' ');
        }
    }
    line
}

/// The last cause of an error, which says most in the fewest words.
pub fn cause(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    bounded(&last.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined_and_controls_go() {
        assert_eq!(bounded("one\r\n\ttwo\u{1b}[31m  three\n"), "one two [31m three");
        assert_eq!(bounded(" \n"), "");
        assert_eq!(bounded("a\u{202e}b\u{2028}c"), "a b c", "nor does anything turn the direction of writing");
    }

    #[test]
    fn long_ones_are_cut() {
        let cut = bounded(&"word ".repeat(100));
        assert!(cut.chars().count() <= LONGEST + 1 && cut.ends_with('…'), "{cut}");
        assert!(bounded(&"x".repeat(1000)).chars().count() <= LONGEST + 1);
    }
}

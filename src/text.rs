//! Texts of others on one line: what a pod, a registry or an API server says goes to logs, Events, conditions and terminals.
//!
//! Invariant: nothing that comes out breaks a line, moves a cursor or turns the direction of writing.
//! Absent on purpose: bounds; each place has its own.

/// The characters of `text`, with a space for each that a reader would not see as one.
pub fn one_line(text: &str) -> impl Iterator<Item = char> {
    text.chars().map(|c| if is_unseen(c) { ' ' } else { c })
}

/// Controls, line separators, and marks that make what follows read from right to left.
fn is_unseen(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn what_is_not_seen_becomes_a_space() {
        for (text, shown) in [("a\u{1b}[2Jb\n", "a [2Jb "), ("\u{9b}31m", " 31m"), ("x\u{202e}y\u{2066}z", "x y z"), ("grün 📦", "grün 📦")]
        {
            assert_eq!(one_line(text).collect::<String>(), shown);
        }
    }
}

//! Columns for people.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthStr as _;

/// Lays rows out in columns as wide as their widest cell, two spaces apart.
pub(crate) fn aligned<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = head.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.width());
        }
    }
    let mut text = String::new();
    let head = head.map(str::to_owned);
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let pad = width.saturating_sub(cell.width());
            let _ = write!(line, "{cell}{:pad$}  ", "");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Text that somebody else stored, without anything that moves a terminal's cursor.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .flat_map(|ch| if ch == '"' || ch == '\'' { vec![ch] } else { ch.escape_debug().collect() })
        .collect()
}

/// `77,88,99`, cut after eight with the whole number of them.
pub(crate) fn some(targets: &[u64]) -> String {
    const SHOWN: usize = 8;
    let list: Vec<String> = targets.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = if targets.len() > SHOWN { ",.." } else { "" };
    format!("{}{more}", list.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_under_wide_characters() {
        let rows = [["协调器".to_owned(), "x".to_owned()], ["ab".to_owned(), "y".to_owned()]];
        let text = aligned(["OWNER", "Z"], &rows);
        assert_eq!(text, "OWNER   Z\n协调器  x\nab      y\n");
    }

    #[test]
    fn stored_text_reaches_a_terminal_without_control_characters() {
        assert_eq!(plain("a\u{1b}[2J\n\"b\" 协"), "a\\u{1b}[2J\\n\"b\" 协");
        assert_eq!(plain("\u{202e}x"), "\\u{202e}x");
    }
}

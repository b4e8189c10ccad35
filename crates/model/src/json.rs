//! Canonical JSON: one text per value.
//!
//! Keys sorted by code point, separators `,` and `:`, no spaces, everything outside ASCII escaped,
//! integers verbatim, other numbers in their shortest round-trip form. These are the rules of the
//! programs that share a table with us, so digests of payloads agree with theirs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::value::RawValue;

/// How deep a value may be nested.
pub const MAX_DEPTH: usize = 64;

/// The most digits of an integer: other programs of a table do not read longer ones.
pub const MAX_INTEGER_DIGITS: usize = 4300;

/// One JSON object, its values still as text.
pub type Object = BTreeMap<String, Box<RawValue>>;

/// Rewrites JSON text canonically.
pub fn canonicalize(text: &str) -> Result<String, JsonError> {
    let mut out = String::with_capacity(text.len());
    write_value(&mut out, text.trim_matches([' ', '\t', '\n', '\r']), 0)?;
    Ok(out)
}

fn write_value(out: &mut String, text: &str, depth: usize) -> Result<(), JsonError> {
    if depth > MAX_DEPTH {
        return Err(JsonError::TooDeep);
    }
    match text.as_bytes().first() {
        Some(b'{') => {
            let object: Object = serde_json::from_str(text)?;
            out.push('{');
            for (index, (key, value)) in object.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_string(out, key);
                out.push(':');
                write_value(out, value.get(), depth + 1)?;
            }
            out.push('}');
        }
        Some(b'[') => {
            let array: Vec<Box<RawValue>> = serde_json::from_str(text)?;
            out.push('[');
            for (index, value) in array.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(out, value.get(), depth + 1)?;
            }
            out.push(']');
        }
        Some(b'"') => write_string(out, &serde_json::from_str::<String>(text)?),
        Some(b'-' | b'0'..=b'9') => write_number(out, text)?,
        _ => {
            let word: serde_json::Value = serde_json::from_str(text)?;
            out.push_str(match word {
                serde_json::Value::Null => "null",
                serde_json::Value::Bool(true) => "true",
                _ => "false",
            });
        }
    }
    Ok(())
}

fn write_number(out: &mut String, text: &str) -> Result<(), JsonError> {
    // Checks the grammar; integers pass through verbatim.
    let _: Box<RawValue> = serde_json::from_str(text)?;
    if !text.contains(['.', 'e', 'E']) {
        if text.trim_start_matches('-').len() > MAX_INTEGER_DIGITS {
            return Err(JsonError::TooManyDigits);
        }
        out.push_str(if text == "-0" { "0" } else { text });
        return Ok(());
    }
    let number: f64 = text.parse().map_err(|_| JsonError::Number(text.to_owned()))?;
    if !number.is_finite() {
        return Err(JsonError::Number(text.to_owned()));
    }
    write_float(out, number);
    Ok(())
}

/// Appends a finite float in its shortest form that reads back the same; never an integer's form.
pub fn write_float(out: &mut String, number: f64) {
    let scientific = format!("{number:e}");
    let exponent = scientific.split_once('e').and_then(|(_, e)| e.parse::<i32>().ok());
    match exponent {
        Some(exponent) if !(-4..16).contains(&exponent) && number != 0.0 => {
            let mantissa = scientific.split_once('e').map_or("", |(mantissa, _)| mantissa);
            let sign = if exponent < 0 { '-' } else { '+' };
            let _ = write!(out, "{mantissa}e{sign}{:02}", exponent.unsigned_abs());
        }
        _ => {
            let _ = write!(out, "{number:?}");
        }
    }
}

/// Appends a quoted string, everything outside printable ASCII escaped.
pub fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for ch in text.chars() {
        match ch {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(ch),
            _ => {
                for unit in ch.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

/// A quoted string, as [`write_string`] writes it.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    write_string(&mut out, text);
    out
}

/// A finite float, as [`write_float`] writes it.
pub fn float(number: f64) -> String {
    let mut out = String::new();
    write_float(&mut out, number);
    out
}

/// Writes an object whose values are already canonical text, with a trailing newline.
pub fn object_line(fields: &BTreeMap<&str, String>) -> String {
    let size: usize = fields.iter().map(|(key, value)| key.len() + value.len() + 4).sum();
    let mut out = String::with_capacity(size + 3);
    out.push('{');
    for (index, (key, value)) in fields.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_string(&mut out, key);
        out.push(':');
        out.push_str(value);
    }
    out.push_str("}\n");
    out
}

/// Why a text is not usable JSON.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    /// Not JSON at all; NaN and Infinity are not JSON.
    #[error("not JSON: {0}")]
    Syntax(#[from] serde_json::Error),
    /// A number that no double can hold.
    #[error("the number {0} is out of range")]
    Number(String),
    /// An integer of over [`MAX_INTEGER_DIGITS`] digits.
    #[error("an integer has over {MAX_INTEGER_DIGITS} digits")]
    TooManyDigits,
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_text_is_sorted_compact_ascii_and_keeps_every_digit() {
        for (input, expected) in [
            (r#" { "b" : 1 , "a" : [ true , null ] } "#, r#"{"a":[true,null],"b":1}"#),
            (r#"{"k":123456789012345678901234567890}"#, r#"{"k":123456789012345678901234567890}"#),
            (r#"{"x":1.50,"y":1e16,"z":1E-7,"w":-0}"#, r#"{"w":0,"x":1.5,"y":1e+16,"z":1e-07}"#),
            ("{\"é\":\"😀\\u007f\"}", r#"{"\u00e9":"\ud83d\ude00\u007f"}"#),
            (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
            (r#""\/\b""#, r#""/\b""#),
        ] {
            assert_eq!(canonicalize(input).unwrap(), expected, "{input}");
            assert_eq!(canonicalize(expected).unwrap(), expected, "not a fixed point: {expected}");
        }
    }

    #[test]
    fn what_is_not_json_is_refused_without_panic() {
        for text in [
            "",
            "{",
            "nul",
            "NaN",
            "Infinity",
            "-Infinity",
            "{\"x\":NaN}",
            "01",
            "1.",
            "{\"a\":1e999}",
            "\"\\ud800\"",
            "[1,]",
            "{a:1}",
            "\u{feff}{}",
            "{} {}",
            "'a'",
            "-",
            "+1",
        ] {
            assert!(canonicalize(text).is_err(), "{text:?}");
        }
        let deep = "[".repeat(5000) + &"]".repeat(5000);
        assert!(matches!(canonicalize(&deep), Err(JsonError::TooDeep | JsonError::Syntax(_))));
    }
}

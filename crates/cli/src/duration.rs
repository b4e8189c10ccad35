//! Durations on the command line: `300ms`, `2s`, `0.2s`, `5m`, `1h`.

use std::time::Duration;

/// The units, longest first so that `ms` is not read as `s`.
const UNITS: [(&str, f64); 5] =
    [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0)];

/// Nothing on a command line lasts longer.
const LONGEST_SECONDS: f64 = 100.0 * 365.25 * 86_400.0;

/// Reads a number and its unit. A bare number is refused, because seconds and milliseconds are
/// mistaken for each other.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let Some((number, seconds)) = UNITS
        .iter()
        .find_map(|(unit, seconds)| text.strip_suffix(unit).map(|number| (number, seconds)))
    else {
        return Err(if decimal(text).is_some() {
            format!("{text} needs a unit: write {text}s for seconds, {text}ms for milliseconds")
        } else {
            "a duration is a number and a unit: 300ms, 2s, 0.2s, 5m, 1h".to_owned()
        });
    };
    let Some(number) = decimal(number) else {
        return Err("a duration is a number and a unit: 300ms, 2s, 0.2s, 5m, 1h".to_owned());
    };
    let total = number * seconds;
    if total > LONGEST_SECONDS {
        return Err("longer than a century".to_owned());
    }
    Ok(Duration::from_secs_f64(total))
}

/// Plain decimal digits with at most one point: no sign, no exponent, no `inf`.
fn decimal(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let digit = text.bytes().any(|byte| byte.is_ascii_digit());
    if plain && digit { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_plain_number_and_a_unit() {
        for (text, millis) in
            [("300ms", 300), ("2s", 2000), ("0.2s", 200), ("5m", 300_000), ("1h", 3_600_000)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse("0s"), Ok(Duration::ZERO));
        assert_eq!(parse(".5s"), Ok(Duration::from_millis(500)));
    }

    #[test]
    fn a_bare_number_is_refused_with_the_unit_it_may_have_meant() {
        assert!(parse("5").unwrap_err().contains("5s for seconds"));
        assert!(parse("1.5").unwrap_err().contains("1.5ms"));
    }

    #[test]
    fn signs_exponents_words_and_centuries_are_refused_without_a_panic() {
        for text in [
            "",
            "s",
            "-1s",
            "+1s",
            "1e9s",
            "infs",
            "NaNs",
            "1 s",
            " 1s",
            "1S",
            "1..2s",
            ".s",
            "１s",
            "1sec",
            "99999999999999999999999999h",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        let digits = "9".repeat(400) + "s";
        assert!(parse(&digits).is_err());
    }
}

//! How to make a call again that went wrong.

use super::cases::{Case, Expect};
use super::judge::Bench;
use super::traced::{Place, Runner};
use crate::context::Trouble;

/// Keeps the table before the call, and says how to make the call on it.
pub(crate) fn reproduce(
    bench: &Bench<'_>,
    case: &Case,
    place: &Place,
    number: usize,
) -> Result<String, Trouble> {
    let kept = bench.context.keep.join(format!("sweep-{}-{number}", case.mode.word()));
    std::fs::create_dir_all(&kept)?;
    let store = kept.join("table");
    if case.expect == Expect::Table {
        let _ = std::fs::remove_dir_all(&store);
    } else {
        case.before.write(&store)?;
    }
    let strace = Runner::new(kept.clone()).strace(std::slice::from_ref(place));
    let program = super::program(bench.context, case).to_string_lossy().into_owned();
    let prelude = case.prelude.as_ref().map(|words| format!("after {}, ", words.join(" ")));
    Ok(format!(
        "{}strace {} {program} {}",
        prelude.unwrap_or_default(),
        strace.join(" "),
        case.args(&store).join(" ")
    ))
}

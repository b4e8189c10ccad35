//! What a call said of itself, and whether it may say so.

use serde_json::Value;

use super::cases::{Case, Expect};
use super::traced::Ran;

/// In one word; what it may not say is added to `wrong`.
pub(crate) fn of(
    case: &Case,
    ran: &Ran,
    undisturbed: Option<&Value>,
    wrong: &mut Vec<String>,
) -> &'static str {
    let said = || ran.ending();
    let answer = ran.answer();
    let Some(code) = ran.code else {
        wrong.push(format!("it ended by {}", said()));
        return "signal";
    };
    let mute = case.expect == Expect::Run || ran.struck_the_answer();
    if answer.is_none() && !mute {
        wrong.push(format!("it gave no answer: {}", said()));
    }
    let answer = answer.unwrap_or(Value::Null);
    match code {
        // The command's own exit code, and a word to people about the lease.
        0 if case.expect == Expect::Run && ran.err.contains("was not released") => "not released",
        0 => {
            let other = |wanted: &Value| {
                let (mut read, mut wanted) = (stable(&answer), stable(wanted));
                // So is the limit of fences.
                if read["fence_limit"].is_null() {
                    strip_field(&mut read, "fence_limit");
                    strip_field(&mut wanted, "fence_limit");
                }
                read != wanted
            };
            if case.expect == Expect::Reads && undisturbed.is_some_and(other) && !mute {
                wrong.push(format!("it reads something else: {}", said()));
            }
            if case.expect == Expect::Busy {
                wrong.push(format!("a held group was granted: {}", said()));
            }
            "done"
        }
        125 if answer["restored"] == Value::Bool(true) => "restored",
        125 if answer["restored"] == Value::Bool(false) => {
            let named = answer["members"].as_array().is_some_and(|members| !members.is_empty());
            if !named && answer["token"].is_null() && !case.own {
                wrong.push(format!("unknown, and of which records is not said: {}", said()));
            }
            "unknown"
        }
        // The answer itself could not be written, or the verb changes nothing that could be put back.
        125 if mute || !case.changes() => "failed",
        125 => "restored",
        65 | 66 | 69 => "refused",
        75 if case.expect == Expect::Busy => "refused",
        // The command may have been struck itself.
        _ if case.expect == Expect::Run && code != 101 => "failed",
        _ => {
            wrong.push(format!("it says what is not so: {}", said()));
            "false"
        }
    }
}

/// An answer without what changes from one moment and place to the next.
fn stable(answer: &Value) -> Value {
    let mut answer = answer.clone();
    strip(&mut answer);
    answer
}
fn strip_field(value: &mut Value, name: &str) {
    if let Value::Object(fields) = value {
        fields.remove(name);
    }
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            // The mount is told where the kernel tells it.
            let passing = ["expires_in", "now", "mount"];
            fields.retain(|name, _| !passing.contains(&name.as_str()));
            fields.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        Value::String(text) => {
            // The place of another worker.
            if let Some((_, rest)) = text.split_once("/table") {
                *text = format!("@{rest}");
            }
        }
        _ => {}
    }
}

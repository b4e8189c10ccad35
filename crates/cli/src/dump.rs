//! `ringfence dump`.

use std::fmt::Write as _;

use ringfence::World;
use ringfence_journal::dump::{DumpError, Item, dump};
use ringfence_journal::meta::MetaError;
use serde_json::value::RawValue;

use crate::args::{JsonArg, StoreArg};
use crate::exit::Exit;
use crate::output::{Complaint, Output};
use crate::store;

/// Flags of `dump`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArg,
    #[command(flatten)]
    json: JsonArg,
}

#[derive(serde::Serialize)]
struct Answer {
    outcome: &'static str,
    store: String,
    items: Vec<Box<RawValue>>,
}

/// Shows what the files of a journal hold.
pub(crate) fn run(args: &Args) -> Exit {
    let out = Output::of(args.json.json);
    out.finish(show(args, out))
}

fn show(args: &Args, out: Output) -> Result<Exit, Complaint> {
    let root = &args.store.store;
    store::expect_no_move(root)?;
    let items = dump(&World::system(), root).map_err(|error| not_dumped(&error))?;
    let text = items.iter().fold(String::new(), |mut text, item| {
        let _ = writeln!(text, "{item}");
        text
    });
    let json = |item: &Item| RawValue::from_string(item.to_json().trim_end().to_owned());
    let items = items.iter().map(json).collect::<Result<_, _>>();
    let items = items.map_err(|error| Complaint::new(Exit::FAILED, "failed", error))?;
    let answer = Answer { outcome: "dumped", store: root.display().to_string(), items };
    Ok(out.answer(&answer, &text))
}

fn not_dumped(error: &DumpError) -> Complaint {
    let message = store::chain(error);
    match error {
        DumpError::Meta(MetaError::Missing) => Complaint::new(Exit::NO_TABLE, "no-table", message),
        DumpError::Meta(MetaError::Damaged { .. }) => {
            Complaint::new(Exit::NO_TABLE, "no-journal", message)
        }
        _ => Complaint::new(Exit::FAILED, "failed", message).with("restored", true),
    }
}

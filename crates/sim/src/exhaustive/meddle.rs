//! A stranger between a crash and its recovery.

use std::collections::BTreeMap;

use ringfence_env::steps;
use ringfence_model::{Key, RecordId};

use super::Explorer;
use super::look::{BYSTANDER, Expected};
use crate::disk::Disk;
use crate::history::State;
use crate::machine::{Machine, Point, has_intent};
use crate::setup::{Mode, read_all, target};
use crate::subject::record_path;

/// A record of another program: its token has no fence.
fn strange_record(number: u64) -> String {
    let id = RecordId::of_target(target(number));
    format!(
        "{{\"attempts\":1,\"id\":\"{id}\",\"owner\":\"stranger\",\"payload\":{{}},\
         \"previous_owner\":null,\"schema\":1,\"status\":\"leased\",\"steals\":0,\
         \"target\":{number},\"targets\":[{number}],\"token\":\"strange\",\
         \"updated\":1700000000.0,\"worker\":1}}\n"
    )
}

/// The first bytes of a target's id.
fn beginning_of(number: u64) -> [u8; 4] {
    let id = RecordId::of_target(target(number)).to_string();
    let beginning = id.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    beginning.expect("hexadecimal digits").to_be_bytes()
}

impl Explorer<'_> {
    /// The process dies, a stranger changes the first member, somebody meets the intent.
    pub(super) fn meddle(
        &mut self,
        at: &str,
        machine: &Machine,
        point: &Point,
        expected: &Expected,
    ) {
        let &[first, _, ..] = self.ready.numbers.as_slice() else { return };
        let touched = expected.old.get(&Key::target(target(first)))
            != expected.new.get(&Key::target(target(first)));
        if self.setup.mode() == Mode::Record
            || !touched
            || !has_intent(&point.disk, beginning_of(first))
        {
            return;
        }
        self.report.meddled += 1;
        if let Err(what) = self.meddled(machine, &point.disk, first, expected) {
            self.wrong(&format!("{at} > kill, a stranger"), what);
        }
    }

    /// Something that was acknowledged does not read any more: the table is refused, and left alone.
    pub(super) fn damage(&mut self, machine: &Machine, disk: &Disk) {
        let later = machine.later(disk.clone(), false);
        // Whoever comes next says in passing what is durable.
        let next = self.setup.open(&self.setup.world(&later, 0));
        if next.is_err() || !self.has_memory() {
            return;
        }
        for number in [BYSTANDER, BYSTANDER + 1] {
            Self::store(&later, &**next.as_ref().expect("opened"), number);
        }
        for (name, damaged) in self.setup.subject.damages(&later) {
            self.report.meddled += 1;
            let machine = later.later(damaged.settled(), true);
            let before = machine.disk().tree();
            let what = match self.setup.open(&self.setup.world(&machine, 0)) {
                Ok(_) => "the table opens",
                Err(error) if !error.contains("damaged") => {
                    "the table is refused for something else"
                }
                Err(_) if machine.disk().tree() != before => "something was changed",
                Err(_) => continue,
            };
            self.wrong(&format!("{name} is damaged"), what);
        }
    }

    fn meddled(
        &self,
        machine: &Machine,
        disk: &Disk,
        first: u64,
        expected: &Expected,
    ) -> Result<(), String> {
        let later = machine.later(self.ready.machine.disk(), false);
        let engine = self.engine(&later).expect("there is a table");
        later.set_disk(disk.clone());
        let (path, line) = (record_path(Key::target(target(first))), strange_record(first));
        let temp = path.with_extension("stranger.tmp");
        steps::durable_replace(&*later.world(0).fs, &temp, &path, line.as_bytes(), 0o600)
            .expect("a quiet host");
        Self::meet(&later, &*engine, &self.ready.numbers);
        Self::meet(&later, &*engine, &self.ready.others);
        if later.disk().file(&path).as_deref() != Some(line.as_bytes()) {
            return Err("recovery wrote over what is neither image".into());
        }
        let audit = self.setup.subject.audit(&later.disk());
        if !String::from_utf8_lossy(&audit).contains("left-alone") {
            return Err("nobody was told of a record that was left alone".into());
        }
        if has_intent(&later.disk(), beginning_of(first)) {
            return Err("the intent still stands after it was met".into());
        }
        let found: BTreeMap<Key, State> = read_all(&*engine)?.into_iter().collect();
        // The others are of one state all the same.
        let mut others = expected.clone();
        let stranger = Key::target(target(first));
        let now = found.get(&stranger).cloned().unwrap_or_else(State::vacant);
        if now.damage.is_some() {
            return Err(format!("the stranger's record is damaged: {:?}", now.damage));
        }
        others.old.insert(stranger, now.clone());
        others.new.insert(stranger, now);
        self.compare(&found, &others)
    }
}

//! Two real clients of one NFSv4.2 export: what the product does there.
//!
//! Three kernels run as processes (User Mode Linux): a server with a disk, and two clients that mount
//! its export with default options. A client keeps names and attributes of files for seconds, and a
//! lock of one file does not refresh what it remembers of others. So a program that reads records
//! under a lock may read old ones, and two hosts may both be granted a target. Therefore `probe` must
//! refuse, so must `init`, and so must every verb on a table that the server made on its own disk; and
//! nothing may be changed by asking. The table itself goes on at the server, over cuts of its power
//! and of a client's.

mod guest;
mod lab;

use std::path::Path;
use std::time::Instant;

use serde_json::Value;

use crate::context::{Context, Trouble};
use crate::report::Row;
use guest::Guest;
use lab::{EXPORT, Lab, MOUNT};

/// Exit code where a directory cannot carry a table.
const UNSUPPORTED: i32 = 69;

/// Runs the layer.
pub(crate) fn run(context: &Context) -> Result<Vec<Row>, Trouble> {
    let tools = context.args.tools.as_deref().ok_or_else(|| {
        Trouble::Missing("User Mode Linux: start this by `cargo xtask crash --two-hosts`".into())
    })?;
    prepare(tools)?;
    let began = Instant::now();
    let binary = context.binary.canonicalize()?;
    let mut trial = Trial { binary: binary.display().to_string(), row: Row::default() };
    trial.row.layer = "hosts";
    "nfs4".clone_into(&mut trial.row.fs);
    "2 clients, 1 server".clone_into(&mut trial.row.workload);
    let mut lab = Lab::new(context, tools)?;
    trial.all(&mut lab)?;
    trial.row.distinct = trial.row.states;
    trial.row.seconds = began.elapsed().as_secs_f64();
    Ok(vec![trial.row])
}

/// The places that a guest's program needs in the directory it takes for the root.
fn prepare(tools: &Path) -> Result<(), Trouble> {
    for place in ["host", "proc", "dev", "tmp"] {
        std::fs::create_dir_all(tools.join(place))?;
    }
    for name in ["lib", "lib64"] {
        if !tools.join(name).exists() {
            std::os::unix::fs::symlink(format!("usr/{name}"), tools.join(name))?;
        }
    }
    Ok(())
}

struct Trial {
    binary: String,
    row: Row,
}

impl Trial {
    fn all(&mut self, lab: &mut Lab) -> Result<(), Trouble> {
        // Both see the same export.
        lab.clients[0].must(&format!("echo seen > {MOUNT}/by-both"))?;
        lab.clients[1].must(&format!("cat {MOUNT}/by-both && rm {MOUNT}/by-both"))?;
        self.refused(lab, "a new export")?;
        let mut last = 0;
        for round in 1..=3_u32 {
            let table = format!("{EXPORT}/table");
            let server = lab.server()?;
            if round == 1 {
                self.granted(server, &format!("init {table}"))?;
            }
            let claim =
                format!("claim {table} --targets {round},100{round} --owner server --ttl 1h");
            let fence = self.granted(server, &claim)?["fence"].as_u64().unwrap_or(0);
            if fence <= last {
                self.row.violations.push(format!("fence {fence} was granted after {last}"));
            }
            last = fence;
            self.refused(lab, "a table that the server made")?;
            lab.cut_server();
            lab.start_server(false)?;
            self.holds(lab.server()?, &table, round)?;
            self.refused(lab, "after a cut of the server's power")?;
        }
        lab.cut_client(0);
        self.refused(lab, "after a cut of the other client's power")?;
        let table = format!("{EXPORT}/table");
        self.holds(lab.server()?, &table, 3)
    }

    /// No client may use the export, and asking changes nothing of it.
    fn refused(&mut self, lab: &mut Lab, when: &str) -> Result<(), Trouble> {
        let look = format!(
            "cd {EXPORT} && find . -type f ! -name probe.json -exec sha256sum {{}} + | sort"
        );
        let before = lab.server()?.must(&look)?;
        let mut clients = std::mem::take(&mut lab.clients);
        for client in &mut clients {
            for verb in [
                format!("probe {MOUNT}"),
                format!("init {MOUNT}/new"),
                format!("claim {MOUNT}/table --targets 1 --owner client"),
            ] {
                // Before the server has made one there is no table, which is a refusal as well.
                let no_table = verb.starts_with("claim") && !before.contains("./table/");
                let wanted = if no_table { 66 } else { UNSUPPORTED };
                self.row.states += 1;
                let (code, said) = client.run(&format!("{} {verb} --json", self.binary))?;
                if code != wanted {
                    let name = client.name;
                    self.row.violations.push(format!("{when}: {verb} on {name}: {code}: {said}"));
                }
            }
        }
        lab.clients = clients;
        let after = lab.server()?.must(&look)?;
        if before != after {
            self.row.violations.push(format!("{when}: a refusal changed {before} to {after}"));
        }
        Ok(())
    }

    /// A call that must succeed on the server's own file system.
    fn granted(&mut self, server: &mut Guest, verb: &str) -> Result<Value, Trouble> {
        self.row.states += 1;
        let said = server.must(&format!("{} {verb} --json", self.binary))?;
        serde_json::from_str(said.trim())
            .map_err(|error| Trouble::Failed(format!("{verb} said {said}: {error}")))
    }

    /// What was acknowledged before is there.
    fn holds(&mut self, server: &mut Guest, table: &str, groups: u32) -> Result<(), Trouble> {
        let listed = self.granted(server, &format!("list {table}"))?;
        let count = listed["leases"].as_array().map_or(0, Vec::len);
        if u32::try_from(count).ok() != Some(2 * groups) {
            self.row
                .violations
                .push(format!("{groups} groups were granted, and there is {listed}"));
        }
        Ok(())
    }
}

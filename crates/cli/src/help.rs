//! Examples and exit codes, as `--help` shows them.

pub(crate) const TOP: &str = "\
Every answer in JSON and every exit code: docs/cli.md. Durations need a unit: 300ms, 2s, 5m, 1h.

Exit codes: 0 done, 64 usage, 65 damaged record, 66 no usable table, 69 directory cannot carry one,
            75 busy, 79 lost, 80 not held, 125 ringfence failed, 128+N ended by signal N";

pub(crate) const INIT: &str = "\
Examples:
  ringfence init /var/tmp/leases
  ringfence init /var/tmp/leases --shards 16 --ttl 2m
  ringfence init /srv/targets --engine files --durability record

A journal by default: one sync per call, on one host. `--engine files` is for a directory that other
programs or hosts share. Repeating it with the same options is harmless; a table keeps the options it
was made with.

Exit codes: 0 ready, 64 usage, 66 another table or other files are there, 69 the directory cannot
            carry a table, 125 failed";

pub(crate) const CLAIM: &str = "\
Examples:
  ringfence claim /var/tmp/leases --targets 77,88 --owner me
  ringfence claim /var/tmp/leases --targets 77,88 --owner me --wait 5s --ttl 10m --json
  ringfence claim /var/tmp/leases --targets 77 --owner me --payload @job.json

Keep the token: heartbeat and release need it. A lease that is not renewed runs out by its ttl.
INT, TERM and HUP end a wait at once, with nothing held.

Exit codes: 0 granted, 64 usage, 65 a damaged record is in the way, 66 no usable table, 75 busy (held
            by somebody until the end of the wait), 125 failed, 128+N ended by signal N";

pub(crate) const HEARTBEAT: &str = "\
Examples:
  ringfence heartbeat /var/tmp/leases --targets 77,88 --token 00000000000000000001-..

Renew at most a third of the ttl apart. After exit code 79 stop working: somebody else may hold the
group. After 125 try again before the lease runs out.

Exit codes: 0 renewed, 64 usage, 66 no usable table, 75 the group's kernel locks stayed busy, 79 lost
            (nothing was changed), 125 failed";

pub(crate) const RELEASE: &str = "\
Examples:
  ringfence release /var/tmp/leases --targets 77,88 --token 00000000000000000001-..

Exit codes: 0 released, 64 usage, 66 no usable table, 75 the group's kernel locks stayed busy, 79 the
            token does not hold the whole group (nothing was removed), 125 failed";

pub(crate) const RUN: &str = "\
Examples:
  ringfence run /var/tmp/leases --targets 77,88 --owner me --wait 5s -- ./solve.sh seed.yaml

Exit codes: the command's own (128+N if signal N ended it), 64 usage, 65 a damaged record is in the
            way, 66 no usable table, 75 busy, 79 the lease was lost, 125 ringfence failed, 126 the
            command cannot be executed, 127 it was not found";

pub(crate) const LIST: &str = "\
Examples:
  ringfence list /var/tmp/leases
  ringfence list /var/tmp/leases --expired --json

Exit codes: 0 listed, 64 usage, 66 no usable table, 125 failed";

pub(crate) const SHOW: &str = "\
Examples:
  ringfence show /var/tmp/leases 77
  ringfence show /var/tmp/leases 77 --json

Exit codes: 0 shown (also when it is free or damaged), 64 usage, 66 no usable table, 125 failed";

pub(crate) const STATUS: &str = "\
Examples:
  ringfence status /var/tmp/leases
  ringfence status /var/tmp/leases --json

Exit codes: 0 summed up, 64 usage, 66 no usable table, 125 failed";

pub(crate) const DUMP: &str = "\
Examples:
  ringfence dump /var/tmp/leases
  ringfence dump /var/tmp/leases --json | jq '.items[] | select(.kind == \"unreadable\")'

Only a table of the engine `journal` has frames.

Exit codes: 0 shown, 64 usage, 66 no journal, 125 failed";

pub(crate) const CHECK: &str = "\
Examples:
  ringfence check /var/tmp/leases
  ringfence check /var/tmp/leases --repair
  ringfence check /var/tmp/leases --repair --bump-fence 1000000000

A table that was restored from a backup or copied is refused by every verb that writes, because it
would hand fences out a second time, until --bump-fence has raised them above all that were.

A damaged record is never removed by a repair: look at it with `show`, then `force-release` it with
the token printed here.

Exit codes: 0 healthy (leftovers may be reported), 64 usage, 65 a damaged or misplaced record, a
            damaged fence counter or a missing directory, 66 no usable table or a restored one, 75 the table stayed in use, 125 failed";

pub(crate) const MIGRATE: &str = "\
Examples:
  ringfence migrate /var/tmp/leases /var/tmp/leases.new
  ringfence migrate /var/tmp/leases.new /srv/targets --engine files --durability record

Leases, work items, tokens and the ttl go along; fences go on above all that were. The old place is
closed for good, for processes that have it open too, and says where the table went. Stop programs other
than Ringfence first. After a crash the same command begins again or finishes.

Exit codes: 0 moved, 64 usage, 65 a damaged record or the like, 66 no usable table, or something is at
            the new place, 69 the new place cannot carry one, 75 the table stayed in use for 10 s,
            125 failed";

pub(crate) const PROBE: &str = "\
Examples:
  ringfence probe /var/tmp
  ringfence probe /mnt/shared --json

Exit codes: 0 usable on this host, 64 usage, 69 unsupported, 125 the directory cannot be tried";

pub(crate) const FORCE_RELEASE: &str = "\
Examples:
  ringfence force-release /var/tmp/leases --targets 77,88 --token 00000000000000000001-.. \\
      --reason \"host lost power\"
  ringfence force-release /var/tmp/leases --targets 99 --token damaged-.. --reason \"disk was full\"
  ringfence force-release /var/tmp/leases --work 44136f.. --token damaged-.. \\
      --reason \"disk was full\"

The token is the one that a refusal, `list` or `show` prints. Its holder may still be at work; only
the fence keeps its results out.

Exit codes: 0 removed, 64 usage, 66 no usable table, 75 the kernel locks stayed busy, 79 held under
            another token (nothing was changed), 80 not held at all, 125 failed";

pub(crate) const RACE: &str = "\
Examples:
  ringfence race --rounds 50
  ringfence race --rounds 50 --json

Exit codes: 0 exactly one winner in every round, 1 not so, 64 usage, 125 failed";

pub(crate) const BENCH: &str = "\
Examples:
  ringfence bench
  ringfence bench --targets 64 --shards 1,8 --rounds 7 --json

Exit codes: 0 measured, 64 usage, 125 failed";

pub(crate) const COMPLETIONS: &str = "\
Examples:
  ringfence completions bash > ~/.local/share/bash-completion/completions/ringfence
  ringfence completions zsh > ~/.zfunc/_ringfence

Exit codes: 0 printed, 64 usage, 125 failed";

pub(crate) const CAMPAIGN: &str = "\
Examples:
  ringfence campaign --dir run --seeds seeds --program lz4.afl --image lz4.elf \\
      --solver campaign/engine/triton_worker.py --seconds 60 --coordinators 4
  ringfence campaign --dir run --seeds seeds --frozen --arm none --seconds 20 \\
      -- python3 campaign/engine/fake_worker.py

A campaign directory belongs to one build of one program, one arm and one ttl; a second campaign in
it goes on where the first one ended. The engine's command line is PYTHON ENGINE IMAGE.

Exit codes: 0 ended as it must, 1 it did not (the report says how), 64 usage, 66 the directory
            belongs to another campaign, 125 failed, 128+N ended early by signal N";

pub(crate) const CAMPAIGN_PARTS: &str = "\
Examples:
  ringfence campaign --help

Not for people: a campaign starts its parts under this name.

Exit codes: 0 ended, 64 usage, 66 the directory belongs to another campaign, 125 failed, and for a
            program that it becomes: its own, 126 it cannot be run, 127 it is not there";

/* The table of verbs. */
#include "cli/command.h"
#include "cli/verbs.h"

#define ANY G_MAXUINT
/* The functions and options of a verb are named after it (verbs.h). */
#define OF(name) sp_##name##_options, &sp_##name##_options_bytes, sp_##name##_verb

const struct sp_command sp_commands[] = {
    {"up", "", "start a server and a worker on this machine and print URL and key", OF(up), 0, 0,
     false},
    {"down", "", "end everything of an installation: sandboxes, daemons, mounts", OF(down), 0, 0,
     false},
    {"run", "[--] COMMAND…", "run a command in a sandbox of its own that is deleted afterwards",
     OF(run), 1, ANY, true},
    {"create", "", "make a sandbox and print its id", OF(create), 0, 0, false},
    {"exec", "ID [--] COMMAND…", "run a command in a sandbox", OF(exec), 1, ANY, true},
    {"ls", "", "list sandboxes", OF(ls), 0, 0, false},
    {"get", "ID", "show a sandbox", OF(get), 1, 1, false},
    {"rm", "ID…", "delete sandboxes", OF(rm), 1, ANY, false},
    {"pause", "ID…", "stop sandboxes where they are; their memory stays", OF(pause), 1, ANY, false},
    {"suspend", "ID…", "save sandboxes to the disk and let go of their memory", OF(suspend), 1, ANY,
     false},
    {"wake", "ID…", "let paused or suspended sandboxes go on", OF(wake), 1, ANY, false},
    {"fork", "ID", "make children that go on from where a sandbox is, and print their ids",
     OF(fork), 1, 1, false},
    /* Two words before the one they begin with: the first row that fits is taken. */
    {"snapshot ls", "", "list snapshots", OF(snapshot_ls), 0, 0, false},
    {"snapshot get", "SNAPSHOT", "show a snapshot", OF(snapshot_get), 1, 1, false},
    {"snapshot rm", "SNAPSHOT…", "delete snapshots", OF(snapshot_rm), 1, ANY, false},
    {"snapshot", "ID", "keep a sandbox as it is now, and print the snapshot's id", OF(snapshot), 1,
     1, false},
    {"rollback", "ID SNAPSHOT", "put a sandbox back to a snapshot", OF(rollback), 2, 2, false},
    {"template build", "DIR|NAME", "build a template from a recipe", OF(template_build), 1, 1,
     false},
    {"template ls", "", "list templates", OF(template_ls), 0, 0, false},
    {"template rm", "NAME:TAG…", "remove templates", OF(template_rm), 1, ANY, false},
    {"ops", "[ID]", "list operations, or show one with its steps", OF(ops), 0, 1, false},
    {"doctor", "", "say what works on this machine, and why not", OF(doctor), 0, 0, false},
    {"completion", "bash", "print a completion script: eval \"$(space completion bash)\"",
     OF(completion), 1, 1, false},
    {"help", "[VERB]", "show this list, or the options of a verb", OF(help), 0, 2, false},
    {"server", "", NULL, OF(server), 0, 0, false},
    {"worker", "", NULL, OF(worker), 0, 0, false},
    {"launcher", "", NULL, OF(launcher), 0, 0, false},
    {0},
};

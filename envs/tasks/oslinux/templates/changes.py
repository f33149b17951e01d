"""Templates of changes: a script looks whether it was made, and nothing else was."""

from random import Random
from shlex import quote

from agentrl.envs.tasks.oslinux.templates.drawn_problem import (
    EXTENSIONS,
    HOME,
    NAMES,
    WORDS,
    DrawnProblem,
    a_folder,
    a_tree,
    quote_paths,
    some_lines,
    text_of,
)


def write_file(random: Random) -> DrawnProblem:
    name, folder = a_folder(random)
    word, stem = random.choice(WORDS), random.choice(NAMES)
    path = f"{folder}/{stem}.txt"
    return DrawnProblem(
        f"Create the file {path}; its only line must be: {word}",
        f"write {word} to {name}/{stem}.txt",
        {f"{folder}/readme": "nothing\n"},
        f"echo {word} > {path}",
        check=f'[ "$(cat {path})" = {word} ]',
    )


def remove_files(random: Random) -> DrawnProblem:
    name, folder = a_folder(random)
    extensions = tuple(random.sample(EXTENSIONS, 3))
    files, chosen = a_tree(random, folder, extensions), extensions[0]
    kept = [path for path in files if not path.endswith(f".{chosen}")]
    return DrawnProblem(
        f"Remove all files below {folder}, at any depth, with the extension .{chosen}, no others.",
        f"remove {chosen} in {name}",
        files if len(kept) < len(files) else {},
        f"find {folder} -name '*.{chosen}' -delete",
        check=f"[ -z \"$(find {folder} -name '*.{chosen}')\" ] && ls {quote_paths(kept)}",
    )


def fix_modes(random: Random) -> DrawnProblem:
    name, folder = a_folder(random)
    extensions = ("key", *random.sample(EXTENSIONS, 2))
    files = a_tree(random, folder, extensions)
    mode = random.choice(("600", "640", "400"))
    keys = [path for path in files if path.endswith(".key")]
    others = [path for path in files if not path.endswith(".key")]
    return DrawnProblem(
        f"Give every file below {folder}, at any depth, with the extension .key the mode {mode}; "
        "leave the other files as they are.",
        f"chmod {mode} key in {name}",
        files if keys and others else {},
        f"find {folder} -name '*.key' -exec chmod {mode} {{}} +",
        check=f'[ "$(stat -c %a {quote_paths(keys)} | sort -u)" = {mode} ] && '
        f'[ "$(stat -c %a {quote_paths(others)} | sort -u)" = 644 ]',
        more=f"find {folder} -type f -exec chmod 644 {{}} +",
    )


def rename_files(random: Random) -> DrawnProblem:
    name, folder = a_folder(random)
    old, new = random.sample(EXTENSIONS, 2)
    stems = random.sample(WORDS, random.randint(3, 6))
    wanted = sorted(f"{stem}.{new}" for stem in stems)
    return DrawnProblem(
        f"Rename every .{old} file in {folder} so that its extension becomes .{new}.",
        f"rename {old} to {new} in {name}",
        {f"{folder}/{stem}.{old}": f"{stem}\n" for stem in stems},
        f'cd {folder}; for f in *.{old}; do mv "$f" "${{f%.{old}}}.{new}"; done',
        check=f'[ "$(ls {folder} | tr "\\n" " ")" = {quote(" ".join(wanted) + " ")} ] && '
        f'[ "$(cat {folder}/{wanted[0]})" = {wanted[0].partition(".")[0]} ]',
    )


def stop_process(random: Random) -> DrawnProblem:
    """The check finds the processes by their seconds, since the agent can change the files.

    It reads two arguments of each process: the agent's answer is the fourth of the check's shell.
    """
    _, folder = a_folder(random)
    names = random.sample(NAMES, 3)
    seconds = {each: 99990 + place for place, each in enumerate(sorted(names))}
    chosen = names[0]
    running = " ".join(str(seconds[each]) for each in sorted(names) if each != chosen)
    files = " ".join(f"{folder}/{each}.pid:1" for each in sorted(names))
    return DrawnProblem(
        f"Each file {folder}/*.pid holds the id of a running process. Stop the process of "
        f"{chosen}.pid and let the others run; leave the files.",
        f"stop {chosen} of {folder}",
        {f"{folder}/readme": "\n"},
        f"kill $(cat {folder}/{chosen}.pid)",
        check='[ "$(head -qzn2 /proc/[0-9]*/cmdline | grep -zx "9999[012]" | sort -z | xargs -0)"'
        f" = {quote(running)} ] && "
        f'[ "$(grep -c . {folder}/*.pid | xargs)" = {quote(files)} ]',
        more="\n".join(
            f"sleep {number} & echo $! > {folder}/{each}.pid" for each, number in seconds.items()
        ),
    )


def move_large(random: Random) -> DrawnProblem:
    name, folder = a_folder(random)
    sizes = {
        f"{stem}.txt": random.choice((random.randint(10, 190), random.randint(210, 400)))
        for stem in random.sample(WORDS, 7)
    }
    large = sorted(each for each, size in sizes.items() if size > 200)
    small = sorted(each for each, size in sizes.items() if size < 200)
    return DrawnProblem(
        f"Move every file in {folder} that is larger than 200 bytes to {HOME}/large, which does "
        "not exist yet.",
        f"move over 200 bytes from {name} to large",
        {f"{folder}/{each}": "x" * size for each, size in sizes.items()} if large and small else {},
        f"mkdir {HOME}/large; find {folder} -type f -size +200c -exec mv {{}} {HOME}/large \\;",
        check=f'[ "$(ls {HOME}/large | xargs)" = {quote(" ".join(large))} ] && '
        f'[ "$(ls {folder} | xargs)" = {quote(" ".join(small))} ]',
    )


def replace_word(random: Random) -> DrawnProblem:
    name, folder = a_folder(random)
    old, new, *rest = random.sample(WORDS, 6)
    files = {
        f"{folder}/{who}.txt": text_of(
            some_lines(random, lambda: random.choice((old, *rest)), 3, 6)
        )
        for who in random.sample(NAMES, 3)
    }
    wanted = [text.replace(old, new) for _, text in sorted(files.items())]
    return DrawnProblem(
        f"Replace the word {old} by {new} in every .txt file in {folder}.",
        f"replace {old} by {new} in {name}",
        files if any(old in text for text in files.values()) else {},
        f"sed -i s/{old}/{new}/g {folder}/*.txt",
        check=f'[ "$(cat {folder}/*.txt | xargs)" = {quote(" ".join("".join(wanted).split()))} ]',
    )

"""Templates of questions: the answer is known here, and found there by a command."""

from collections import Counter
from random import Random

from agentrl.envs.tasks.oslinux.templates.drawn_problem import (
    EXTENSIONS,
    LEVELS,
    NAMES,
    SHELLS,
    WORDS,
    DrawnProblem,
    a_folder,
    a_tree,
    some_lines,
    text_of,
)


def count_files(random: Random) -> DrawnProblem:
    name, folder = a_folder(random)
    extensions = tuple(random.sample(EXTENSIONS, 3))
    files, chosen = a_tree(random, folder, extensions), extensions[0]
    return DrawnProblem(
        f"How many files below {folder}, at any depth, have the extension .{chosen}?",
        f"count {chosen} in {name}",
        files,
        f"find {folder} -name '*.{chosen}' | wc -l",
        str(sum(path.endswith(f".{chosen}") for path in files)),
    )


def count_lines(random: Random) -> DrawnProblem:
    name, folder = a_folder(random)
    word = random.choice(LEVELS)
    lines = some_lines(random, lambda: f"{random.choice(LEVELS)} {random.choice(WORDS)}")
    return DrawnProblem(
        f"How many lines of the file {folder}/app.log begin with {word}?",
        f"count {word} in {name}/app.log",
        {f"{folder}/app.log": text_of(lines)},
        f"grep -c ^{word} {folder}/app.log",
        str(sum(line.startswith(word) for line in lines)),
    )


def sum_column(random: Random) -> DrawnProblem:
    name, folder = a_folder(random)
    lines = some_lines(random, lambda: f"{random.choice(NAMES)} {random.randint(1, 99)}", 5, 12)
    return DrawnProblem(
        f"Each line of {folder}/pay.txt holds a name and a number. What is the sum of the numbers?",
        f"sum column 2 of {name}/pay.txt",
        {f"{folder}/pay.txt": text_of(lines)},
        f"awk '{{s+=$2}} END {{print s}}' {folder}/pay.txt",
        str(sum(int(line.split()[1]) for line in lines)),
    )


def largest_file(random: Random) -> DrawnProblem:
    name, folder = a_folder(random)
    sizes = random.sample(range(10, 900), 6)
    names = [f"{stem}.txt" for stem in random.sample(WORDS, 6)]
    order, flag, pick = random.choice((("largest", "S", max), ("smallest", "Sr", min)))
    return DrawnProblem(
        f"What is the name of the {order} file in {folder}? Give the name without its folder.",
        f"{order} file in {name}",
        {f"{folder}/{each}": "x" * size for each, size in zip(names, sizes, strict=True)},
        f"ls -{flag} {folder} | head -n 1",
        names[sizes.index(pick(sizes))],
    )


def users_of_shell(random: Random) -> DrawnProblem:
    _, folder = a_folder(random)
    people, shell = random.sample(NAMES, 9), random.choice(SHELLS)
    lines = [
        f"{who}:x:{1000 + n}:100::/home/{who}:{random.choice(SHELLS)}"
        for n, who in enumerate(people)
    ]
    return DrawnProblem(
        f"The file {folder}/passwd has the format of /etc/passwd. How many of its users have the "
        f"login shell {shell}?",
        f"count {shell} in {folder}/passwd",
        {f"{folder}/passwd": text_of(lines)},
        f"grep -c :{shell}$ {folder}/passwd",
        str(sum(line.endswith(f":{shell}") for line in lines)),
    )


def unique_values(random: Random) -> DrawnProblem:
    name, folder = a_folder(random)
    lines = some_lines(random, lambda: f"{random.choice(WORDS)},{random.choice(NAMES)}")
    return DrawnProblem(
        f"How many different values does the second column of {folder}/list.csv hold?",
        f"count different column 2 of {name}/list.csv",
        {f"{folder}/list.csv": text_of(lines)},
        f"cut -d, -f2 {folder}/list.csv | sort -u | wc -l",
        str(len({line.split(",")[1] for line in lines})),
    )


def highest_score(random: Random) -> DrawnProblem:
    name, folder = a_folder(random)
    people = random.sample(NAMES, 8)
    scores = random.sample(range(5, 2000), 8)
    lines = [f"{who},{score}" for who, score in zip(people, scores, strict=True)]
    return DrawnProblem(
        f"Each line of {folder}/score.csv holds a name and a number. Which name has the highest "
        "number?",
        f"name with highest column 2 of {name}/score.csv",
        {f"{folder}/score.csv": text_of(lines)},
        f"sort -t, -k2 -n {folder}/score.csv | tail -n 1 | cut -d, -f1",
        people[scores.index(max(scores))],
    )


def hidden_files(random: Random) -> DrawnProblem:
    name, folder = a_folder(random)
    hidden = random.sample(WORDS, random.randint(2, 6))
    shown = random.sample(WORDS, 3)
    files = {f"{folder}/.{each}": "x\n" for each in hidden}
    return DrawnProblem(
        f"How many hidden files are in {folder} itself?",
        f"count hidden in {name}",
        files | {f"{folder}/{each}": "x\n" for each in shown},
        f"find {folder} -maxdepth 1 -name '.*' -type f | wc -l",
        str(len(hidden)),
    )


def busiest_address(random: Random) -> DrawnProblem:
    name, folder = a_folder(random)
    addresses = [f"10.0.0.{n}" for n in random.sample(range(2, 99), 4)]
    status = random.choice(("200", "404", "500"))

    def line() -> str:
        return f"{random.choice(addresses)} GET /{random.choice(WORDS)} " + random.choice(
            ("200", "404", "500")
        )

    lines = some_lines(random, line, 20, 40)
    ranked = Counter(each.split()[0] for each in lines if each.endswith(status)).most_common()
    tied = len(ranked) < 2 or ranked[0][1] == ranked[1][1]
    return DrawnProblem(
        f"Each line of {folder}/access.log holds an address, a method, a path and a status. Which "
        f"address has the most requests with the status {status}?",
        f"address with most {status} in {name}/access.log",
        {} if tied else {f"{folder}/access.log": text_of(lines)},
        f"awk '$4=={status} {{print $1}}' {folder}/access.log | sort | uniq -c | sort -n "
        "| tail -n 1 | awk '{print $2}'",
        ranked[0][0] if ranked else "",
    )


def total_size(random: Random) -> DrawnProblem:
    name, folder = a_folder(random)
    extensions = tuple(random.sample(EXTENSIONS, 2))
    files, chosen = a_tree(random, folder, extensions), extensions[0]
    return DrawnProblem(
        f"What is the total size in bytes of the files below {folder}, at any depth, with the "
        f"extension .{chosen}?",
        f"total bytes of {chosen} in {name}",
        files if any(path.endswith(chosen) for path in files) else {},
        f"find {folder} -name '*.{chosen}' -printf '%s\\n' | awk '{{s+=$1}} END {{print s}}'",
        str(sum(len(text) for path, text in files.items() if path.endswith(f".{chosen}"))),
    )


def total_of_name(random: Random) -> DrawnProblem:
    name, folder = a_folder(random)
    people = dict(zip(random.sample(NAMES, 4), random.sample(range(10, 99), 4), strict=True))
    who = random.choice(sorted(people))
    numbers = list(people.values())
    orders = some_lines(random, lambda: f"{random.choice(numbers)} {random.randint(1, 99)}", 10, 20)
    return DrawnProblem(
        f"{folder}/people holds names and numbers of customers, {folder}/orders numbers of "
        f"customers and amounts. What is the total amount of the orders of {who}?",
        f"total of {who} in {name}",
        {
            f"{folder}/people": text_of([f"{each} {number}" for each, number in people.items()]),
            f"{folder}/orders": text_of(orders),
        },
        f"n=$(awk '$1==\"{who}\" {{print $2}}' {folder}/people); "
        f"awk -v n=$n '$1==n {{s+=$2}} END {{print s+0}}' {folder}/orders",
        str(sum(int(o.split()[1]) for o in orders if int(o.split()[0]) == people[who])),
    )

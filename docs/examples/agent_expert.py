"""An expert for agent_smolagents.py: the SQL of a question, then what it found."""

import re

FORMS = (
    (r"highest (\w+)\?", "select max({0}) from {table}"),
    (r"lowest (\w+)\?", "select min({0}) from {table}"),
    (r"how many (\w+) (\w+)\?", "select count(*) from {table} where {0}='{1}'"),
    (r"total (\w+) (\w+) (\w+)\?", "select sum({0}) from {table} where {1}='{2}'"),
    (
        r"list (\w+) (\w+) (\w+) by (\w+)",
        "select {0} from {table} where {1}='{2}' order by {3}",
    ),
    (r"(\w+) of (\w+)\?", "select {0} from {table} where {key}='{1}'"),
)
CELL = re.compile(r"'([^']*)'|(\d+)")


def expert(item, messages, fault):
    """Return the next call. `fault`: draws the mistake of a turn that is to have one."""
    seen = messages[-1]["content"]
    if seen.startswith("Observation:"):
        answers = [text or number for text, number in CELL.findall(seen)]
        if fault and len(answers) > 1:
            answers.pop(fault.randrange(len(answers)))
        elif fault:
            answers = [fault.choice(fault.choice(item["rows"]))]
        return {"name": "final_answer", "arguments": {"answer": ", ".join(answers)}}
    query = sql(item)
    if fault:
        column = fault.choice(item["columns"])
        wrong = [query.split(" where ")[0], re.sub(r"\w+(?=\)| from)", column, query, count=1)]
        query = fault.choice(wrong)
    return {"name": "execute_sql", "arguments": {"query": query}}


def sql(item):
    for form, query in FORMS:
        if found := re.fullmatch(form, item["question"]):
            key = item["columns"][0]
            return query.format(*found.groups(), table=item["table"], key=key)
    raise ValueError(f"no SQL for the question {item['question']!r}")

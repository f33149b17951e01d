"""Records of AgentBench's files."""

QUESTION = {
    "description": "Where does Kim live?",
    "label": ["Oslo"],
    "type": ["other"],
    "table": {
        "table_name": "Staff",
        "table_info": {"columns": [{"name": "home"}], "rows": [["Oslo"]]},
    },
}

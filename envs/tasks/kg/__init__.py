"""KG: answer a question by walking a knowledge graph, one set of entities after another."""

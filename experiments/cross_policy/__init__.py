"""`agentrl experiment cross-policy`: studies whether cross-policy sampling improves exploration."""

"""Running recorded journals against today's code, without executing any step."""

"""The app, its runs, and the engine behind them."""

"""The shadow: what Kintsugi would have done beside what people did."""

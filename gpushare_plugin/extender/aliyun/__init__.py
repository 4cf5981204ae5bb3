"""The parts of the extender for Aliyun's plugin and tools: cordons in ConfigMaps, and `/inspect`."""

"""What Aliyun's plugin and tools have of an extender: cordons in ConfigMaps, and `/inspect`."""
